"""Whether a backup that differs from its primary is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.verification import Verification
from stratagem_psserver.server import ParameterServer
from tests.psserver.persistence.servers import client_of
from tests.psserver.replication.pairs import (
    Pair,
    pair,
    report_of,
    standby_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.tables.specs import dynamic, table_spec
from tests.psserver.tables.test_tables_over_the_wire import ADAGRAD, update_rows
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged


def compared(primary: ParameterServer) -> int:
    """The position at which a primary has found its backup equal, after it has looked."""
    assert primary._replicated is not None
    leads = primary._replicated._require_task()._primary
    assert leads is not None
    verification: Verification = leads._verification
    link: BackupLink | None = leads._required
    assert link is not None
    primary._loop.run(verification.compare(link))
    return report_of(primary).verified


def grown(both: Pair) -> tuple[ParameterServer, ParameterServer]:
    """A pair with a table that evicts rows, some of which its backup has from an image."""
    primary, backup = both.await_backup()
    index = report_of(backup).replica.index
    with client_of(primary) as client:
        client.create(w=torch.rand(3))
        client.create_as([table_spec("rows", (0, 4), table=dynamic(max_rows=20))], [])
        for number in range(30):
            update_rows(client, ADAGRAD, {"rows": ([number, number + 7], torch.rand(2, 4))})
        both.crash(backup)
        both.start(index)
        primary, backup = both.await_backup()
        for number in range(50):
            update_rows(
                client, ADAGRAD, {"rows": ([3 * number, number % 9 + 100], torch.rand(2, 4))}
            )
        client.assign("w", torch.rand(3))
    return primary, backup


@pytest.mark.parametrize("durability", ["none", "log"])
def test_equal_replicas_have_equal_digests(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability) as both:
        primary, backup = grown(both)
        assert compared(primary) > 0
        assert state_of_backup(backup) == state_of_primary(primary)


def test_a_backup_that_differs_in_one_bit_gets_another_image(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = grown(both)
        state_of_backup(backup)
        variable = standby_of(backup).state.store.find("w")
        assert variable is not None
        variable.value.view(torch.uint8)[0] ^= 1
        assert compared(primary) == 0
        eventually(lambda: not report_of(primary).view.HasField("backup"))
        primary, backup = both.await_backup()
        assert state_of_backup(backup) == state_of_primary(primary)

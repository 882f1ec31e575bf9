"""Whether a backup that differs from its primary is noticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem_proto.protocol import session_name
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    ASSIGN_MODE_SET,
    AssignHeader,
    Assignment,
    AssignResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.exactly_once.mutations import Mutations
from stratagem_psserver.persistence.images import Moment
from stratagem_psserver.replication.backup_link import BackupLink
from stratagem_psserver.replication.standby import Standby
from stratagem_psserver.replication.verification import Verification
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.state import ServerState
from tests.psserver.persistence.servers import DURABILITIES, client_of
from tests.psserver.replication.pairs import (
    Pair,
    await_primary,
    pair,
    report_of,
    standby_of,
    state_of_backup,
    state_of_primary,
)
from tests.psserver.tables.specs import dynamic, table_spec
from tests.psserver.tables.test_tables_over_the_wire import ADAGRAD, update_rows
from tests.psserver.test_checkpoint_gate import report
from tests.psserver.wire import RawClient, encoded
from tests.waiting import eventually

pytestmark = pytest.mark.unlogged

_PATIENT: Any = {"failover_seconds": 15.0}
"""Settings of replicas that keep each other while a comparison looks at both."""


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


@pytest.mark.full("replicas that differ in nothing are compared by the tests below")
@pytest.mark.parametrize("durability", DURABILITIES)
def test_equal_replicas_have_equal_digests(tmp_path: Path, durability: str) -> None:
    with pair(tmp_path, durability=durability, **_PATIENT) as both:
        primary, backup = grown(both)
        assert compared(primary) > 0
        assert state_of_backup(backup) == state_of_primary(primary)


def test_a_backup_that_differs_in_one_bit_gets_another_image(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pair(tmp_path, **_PATIENT) as both:
        primary, backup = grown(both)
        state_of_backup(backup)
        variable = standby_of(backup).state.store.find("w")
        assert variable is not None
        variable.value.view(torch.uint8)[0] ^= 1
        assert compared(primary) == 0
        assert "'parts': 'variables'" in caplog.text
        eventually(lambda: not report_of(primary).view.HasField("backup"))
        primary, backup = both.await_backup()
        assert state_of_backup(backup) == state_of_primary(primary)


def test_a_backup_that_left_during_a_comparison_does_not_end_all_further_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(state: Standby, position: int, moment: Moment) -> None:
        state.state.snapshots.close(moment.snapshot)

    with pair(tmp_path, verify_seconds=0.1) as both:
        with monkeypatch.context() as patched:
            patched.setattr(Standby, "_digest", never)
            primary, backup = both.await_backup()
            index = report_of(backup).replica.index
            assert primary._replicated is not None
            leads = primary._replicated._require_task()._primary
            assert leads is not None
            eventually(lambda: leads._verification._comparing is not None)
            both.crash(backup)
        both.start(index)
        primary, _ = both.await_backup()
        eventually(lambda: report_of(primary).verified > 0)


async def announce(state: ServerState, identity: str, session_id: bytes) -> None:
    state.restored.add(identity, session_id)


def close(client: RawClient) -> None:
    request = session_pb2.CloseSessionRequest(session_id=client.session_id)
    client.unary("CloseSession", request, session_pb2.CloseSessionResponse)


def test_restorations_are_announced_in_their_order_by_who_gets_an_image(tmp_path: Path) -> None:
    with pair(tmp_path) as both:
        primary, backup = both.await_backup()
        index = report_of(backup).replica.index
        both.crash(backup)
        with client_of(primary) as first, client_of(primary) as second, client_of(primary) as third:
            for client, identity in ((first, "a"), (second, "b"), (third, "c")):
                primary._loop.run(
                    announce(primary._state, identity, session_name(client.session_id))
                )
            close(second)
            both.start(index)
            primary, backup = both.await_backup()
            assert compared(primary) > 0
            both.crash(primary)
            await_primary(backup)
            assert backup._state.restored.identities == ["a", "b", "c"]


def scheduled(client: RawClient, coordinator: bytes) -> None:
    """Adds one to "w" as the first function of a coordinator does."""
    written = Assignment(variable="w", mode=ASSIGN_MODE_ADD, value=0)
    header = AssignHeader(key=client.key(), assignments=[written], tensors=[spec_of(torch.ones(3))])
    header.key.closure.identity.space, header.key.closure.identity.number = coordinator, 1
    header.key.closure.ordinal = 1
    client.upload("Assign", encoded(header, [torch.ones(3)]), AssignResponse)


def test_a_function_that_runs_again_and_changes_nothing_makes_no_difference(
    tmp_path: Path,
) -> None:
    with pair(tmp_path) as both:
        primary, _ = both.await_backup()
        with client_of(primary) as client:
            client.create(w=torch.zeros(3))
            scheduled(client, b"coordinator 1234")
            scheduled(client, b"coordinator 5678")
            scheduled(client, b"coordinator 1234")
            assert client.read("w")[0].tolist() == [2.0, 2.0, 2.0]
        assert compared(primary) > 0


async def end_request(mutations: Mutations, state: ServerState) -> None:
    """Ends the one that was under way."""
    mutations._applying -= 1
    state.waits.changed("image")


def told_late(client: RawClient) -> AssignHeader:
    """A request by which the server learns what its client has done before."""
    written = Assignment(variable="w", mode=ASSIGN_MODE_SET, value=0)
    header = AssignHeader(key=client.key(), assignments=[written], tensors=[spec_of(torch.ones(3))])
    header.key.finished, header.key.report = 7, report('{"a": 1}')
    return header


def test_what_a_request_tells_that_waits_for_the_comparison_makes_no_difference(
    tmp_path: Path,
) -> None:
    with pair(tmp_path) as both:
        primary, _ = both.await_backup()
        mutations = primary._state.mutations
        assert isinstance(mutations, Mutations)
        with client_of(primary) as client, ThreadPoolExecutor() as threads:
            client.create(w=torch.zeros(3))
            # As if a large request were under way.
            mutations._applying += 1
            comparing = threads.submit(compared, primary)
            eventually(lambda: mutations._paused is not None)
            request = encoded(told_late(client), [torch.ones(3)])
            waiting = threads.submit(client.upload, "Assign", request, AssignResponse)
            eventually(lambda: bool(mutations._paused))
            primary._loop.run(end_request(mutations, primary._state))
            assert comparing.result() > 0
            waiting.result()

"""Which arbiters there are."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.replication.registers import arbiter_of
from tests.psserver.replication.arbiters.places import settings_of


@pytest.mark.parametrize("arbiter", ["zookeeper:a:1/b", "/var/lib/arbiter", "chief:a:1"])
def test_an_arbiter_that_there_is_not_is_refused(arbiter: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"--arbiter '{arbiter}' is none; give file:"):
        arbiter_of(settings_of(arbiter))

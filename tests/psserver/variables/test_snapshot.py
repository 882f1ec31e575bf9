"""Snapshots that are taken while variables change."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator

import pytest
import torch

from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.variables.snapshots import Snapshots
from stratagem_psserver.variables.store import VariableStore

COUNT = 3_000


@pytest.fixture
def impatient() -> Iterator[None]:
    """Lets threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_a_variable_changes_while_its_value_is_taken() -> None:
    store, snapshots = VariableStore(), Snapshots()
    values = [torch.zeros(1) for _ in range(COUNT)]
    specs = [
        VariableSpec(name=f"v{n}", tensor=spec_of(one), kind=VARIABLE_KIND_MODEL)
        for n, one in enumerate(values)
    ]
    store.create(specs, values)
    for _ in range(10):
        snapshot = snapshots.take(store)
        writer = threading.Thread(target=deque, args=(snapshot.taken(), 0))
        variables = snapshots.shared(store.variables())
        writer.start()
        snapshot.note_separated(variables)
        writer.join()
        assert not snapshots.shared(store.variables())
        snapshots.close(snapshot)

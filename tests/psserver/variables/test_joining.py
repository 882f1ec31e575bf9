"""Variables that lie one behind the other are what they were, and count as much."""

from __future__ import annotations

import torch

from stratagem_proto.wire.segment import starts
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.variables.snapshots import Snapshots
from stratagem_psserver.variables.store import Variable, VariableStore, joined
from tests.psserver.wire import model_spec

SHAPES = [(3, 5), (), (0, 2), (16,), (1,)]


def hosting(
    room: VariableMemoryLimit | None = None,
) -> tuple[VariableStore, list[Variable]]:
    """A store with a variable of each shape."""
    torch.manual_seed(0)
    store = VariableStore(room)
    values = [torch.randn(shape) for shape in SHAPES]
    names = [f"v{number}" for number in range(len(values))]
    specs = [model_spec(*each) for each in zip(names, values, strict=True)]
    store.create(specs, values)
    return store, [store.get(name) for name in names]


def test_they_keep_their_values_and_lie_as_in_a_segment() -> None:
    store, variables = hosting()
    before = [each.value.clone() for each in variables]
    generation = store.generation
    memory = joined(store, variables)
    assert memory is not None
    assert store.generation > generation
    assert all(map(torch.equal, [each.value for each in variables], before))
    places, room = starts([each.value.nbytes for each in variables])
    assert memory.nbytes == room
    for variable, place in zip(variables, places, strict=True):
        begin, size = place // 4, variable.value.numel()
        memory[begin : begin + size] = 7.0
        assert torch.all(variable.value == 7.0)


def test_those_that_lie_so_stay_where_they_are() -> None:
    store, variables = hosting()
    memory = joined(store, variables)
    generation = store.generation
    assert joined(store, variables) is memory
    assert joined(store, variables[::-1]) is None
    assert joined(store, variables[:2]) is None
    assert store.generation == generation


def test_they_lie_together_again_once_one_was_replaced() -> None:
    store, variables = hosting()
    first = joined(store, variables)
    store.put_value("v3", torch.full((16,), 3.0))
    again = joined(store, variables)
    assert again is not None
    assert again is not first
    assert torch.equal(variables[3].value, torch.full((16,), 3.0))


def test_a_snapshot_keeps_what_it_has_of_them() -> None:
    store, variables = hosting()
    memory = joined(store, variables)
    assert memory is not None
    before = [each.value.clone() for each in variables]
    snapshots = Snapshots()
    snapshot = snapshots.take(store)
    snapshots.separate(snapshots.shared(variables))
    for variable in variables:
        variable.value.fill_(9.0)
    assert all(map(torch.equal, snapshot.taken(), before))


def test_memory_counts_until_nobody_has_a_part_of_it() -> None:
    room = VariableMemoryLimit(limit=1 << 20)
    store, variables = hosting(room)
    whole = room.used
    assert joined(store, variables) is not None
    assert room.used == whole
    store.delete(["v0", "v3"])
    assert room.used == whole
    store.put_value("v4", torch.zeros(1))
    store.delete(["v1"])
    assert room.used > 0
    store.delete(["v2"])
    assert room.used == variables[4].value.nbytes

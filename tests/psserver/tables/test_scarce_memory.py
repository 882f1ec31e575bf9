"""A table that finds no memory for more rows keeps those that it has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stratagem_proto.errors import ResourceExhaustedError
from stratagem_proto.key_index import KeyIndex
from stratagem_proto.wire.tensors import is_out_of_memory
from stratagem_psserver.optimization.gradients import Gradient
from tests.psserver.scarce_memory import in_a_child, limited_memory
from tests.psserver.tables.specs import ZEROS, dynamic, hosting, table_of, table_spec
from tests.psserver.wire import sgd

AT_ONCE = 50_000


def _pushed_until_memory_ends(nbytes: int) -> str:
    """What becomes of rows that are pushed until there is no memory for more."""
    torch.set_num_threads(1)
    store, optimizers = hosting(table_spec("t", (0, 1), ZEROS, table=dynamic()))
    table, batches = table_of(store.get("t")), list[torch.Tensor]()
    with limited_memory(nbytes):
        try:
            while True:
                keys = torch.arange(AT_ONCE) * 7919 + len(batches) * (1 << 32)
                gradient = Gradient("t", 0, torch.ones(AT_ONCE, 1), keys)
                step = optimizers.prepare(sgd(), [gradient])
                step.run()
                optimizers.commit(step)
                batches.append(keys)
        except (MemoryError, RuntimeError) as error:
            assert is_out_of_memory(error), error
    trained = torch.cat(batches)
    if len(table) != len(trained):
        return "half taken"
    rows = table.value.read(table.find(trained))
    return "kept" if bool((rows == -1).all()) else "lost"


@pytest.mark.parametrize(
    "mib",
    [
        100,
        *(
            pytest.param(mib, marks=pytest.mark.full("each operation runs out of memory below"))
            for mib in (140, 180)
        ),
    ],
)
def test_rows_stay_where_there_is_no_memory_for_more(mib: int) -> None:
    assert in_a_child(_pushed_until_memory_ends, mib << 20) == "kept"


class _NoMemory(torch.utils._python_dispatch.TorchDispatchMode):
    """Lets so many operations of torch take memory, and no more."""

    def __init__(self, left: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = left

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, operation, types, arguments=(), keywords=None
    ):
        takes = not any(each.alias_info for each in operation._schema.returns)
        self.left -= takes
        if takes and self.left < 0:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")
        return operation(*arguments, **(keywords or {}))


def failing_each_time(work: Callable[[], None], check: Callable[[], None]) -> int:
    """Has work fail at each operation that takes memory; says how many there are."""
    for left in range(1000):
        try:
            with _NoMemory(left):
                work()
        except (RuntimeError, ResourceExhaustedError):
            check()
        else:
            return left
    raise AssertionError("it fails always")


def test_an_index_that_cannot_grow_has_its_keys() -> None:
    keys, more = torch.arange(500) * 31, torch.arange(500) * 37 + 100_000
    index, both = KeyIndex.from_keys(keys), torch.cat((keys, more))

    def check() -> None:
        assert torch.equal(index.find(keys, both), torch.arange(500))
        assert (index.find(more, both) < 0).all()
        assert len(index) == 500

    places = torch.arange(500, 1000)

    def insert() -> None:
        index.reserve(500, keys)
        index.insert(more, places)

    assert failing_each_time(insert, check) > 10
    assert torch.equal(index.find(more, both), places)


@pytest.mark.parametrize("limits", [{}, {"max_rows": 150}])
def test_no_write_that_fails_changes_rows(limits: dict[str, int]) -> None:
    store, _ = hosting(table_spec("t", (0, 4), table=dynamic(**limits)))
    table = table_of(store.get("t"))
    keys, more = torch.arange(100), torch.arange(50, 180)
    table.make_room(table.find(keys), store.memory_limit)
    table.store(table.find(keys), {table.value: torch.randn(100, 4)})
    before = table.value.read(table.find(keys))
    written = torch.randn(len(more), 4)

    def write() -> None:
        table.make_room(table.find(more), store.memory_limit)
        table.store(table.find(more), {table.value: written})

    def check() -> None:
        # The oldest may have gone before.
        stored = ~table.find(keys).is_new
        assert stored[50:].all() and (bool(limits) or stored.all())
        kept = table.value.read(table.find(keys))
        assert torch.equal(kept[stored], before[stored])
        assert table.find(more[50:]).num_new == len(more) - 50

    failing_each_time(write, check)
    assert torch.equal(table.value.read(table.find(more)), written)

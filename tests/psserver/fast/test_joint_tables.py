"""Steps of many tables at once are those of each table by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from stratagem_proto.errors import DataLossError, ResourceExhaustedError
from stratagem_proto.programs.random_rows import InitialValues
from stratagem_proto.v1.variable_pb2 import Initializer, TruncatedNormalShape, VariableSpec
from stratagem_psserver.fast import row_groups, same_bytes
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.optimization.gradients import StepGradients, as_sparse
from stratagem_psserver.optimization.optimizers import Optimizers
from stratagem_psserver.variables.creation import initial_values
from stratagem_psserver.variables.store import VariableStore
from tests.full import a_few
from tests.psserver.fast.test_row_groups import CASES
from tests.psserver.optimization.pushes import Pushed, Server
from tests.psserver.tables.specs import (
    NORMAL,
    UNIFORM,
    ZEROS,
    dynamic,
    table_of,
    table_spec,
)
from tests.psserver.tables.test_scarce_memory import _NoMemory
from tests.psserver.wire import optimizer_program

ROWS = 400
CUT = Initializer(
    seed=3, truncated_normal=TruncatedNormalShape(mean=0.1, std=1.0, low=-1.0, high=2.0)
)
PADDED = Initializer(seed=UNIFORM.seed, uniform=UNIFORM.uniform, zero_row=0)

SPECS = (
    table_spec("uniform", (ROWS, 16), UNIFORM),
    table_spec("normal", (ROWS * 3, 16), NORMAL),
    table_spec("cut", (ROWS, 16), CUT),
    table_spec("zeros", (ROWS, 16), ZEROS),
    table_spec("padded", (ROWS, 16), PADDED),
    table_spec("narrow", (ROWS, 3), NORMAL),
    table_spec("cube", (ROWS, 2, 5), UNIFORM),
    table_spec("double", (ROWS, 16), NORMAL, dtype=torch.float64),
    table_spec("any", (0, 16), UNIFORM),
)


class Tables(Server):
    """A server with tables, beside other variables."""

    def __init__(
        self,
        case: tuple[type[Any], dict[str, Any]],
        specs: Sequence[VariableSpec] = SPECS,
        values: Mapping[str, torch.Tensor] | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(case, values or {})
        if limit is not None:
            self.store = VariableStore(VariableMemoryLimit(limit))
            self.optimizers = Optimizers(self.store)
            self.store.watch(self._forget)
        self.store.create(specs, initial_values(specs, []))

    @property
    def contents(self) -> dict[str, Any]:
        """All that there is of variables and tables."""
        found: dict[str, Any] = dict(super().contents)
        for each in self.store.variables():
            if each.arena is not None:
                table = each.arena.table
                keys, touched = table.stored()
                rows = each.arena.storage[: len(table)].contiguous()
                sights = [vector.tolist() for vector in table.admission.sights()]
                seen = keys.tolist(), touched.tolist(), table.history().SerializeToString()
                found[f"{each.name} rows"] = bytes(rows.view(torch.uint8).numpy()), *seen, sights
        return found


def some_keys(generator: torch.Generator, spec: VariableSpec, count: int) -> torch.Tensor:
    most = spec.tensor.shape[0] or ROWS
    # Popular rows come again, so that some are new and some are not.
    drawn = (torch.rand(count, generator=generator) ** 3 * most).long()
    keys: torch.Tensor = drawn.unique()
    return keys if spec.tensor.shape[0] else (keys - 7) * (1 << 53) // 3


def pushes(
    generator: torch.Generator, count: int, specs: Sequence[VariableSpec] = SPECS
) -> list[Pushed]:
    made = list[Pushed]()
    for spec in specs:
        keys = some_keys(generator, spec, count)
        dtype = InitialValues(spec).dtype
        shape = len(keys), *spec.tensor.shape[1:]
        made.append(Pushed(spec.name, torch.randn(shape, generator=generator, dtype=dtype), keys))
    return made


def _gradients(pushed: Sequence[Pushed]) -> StepGradients:
    return StepGradients([one.value for one in pushed], [one.rows for one in pushed])


@pytest.mark.parametrize("case", CASES)
def test_tables_have_the_bytes_of_checked_steps(case: str) -> None:
    generator = torch.Generator().manual_seed(1)
    values = {"weight": torch.randn(9, 9), "rows": torch.randn(ROWS, 16)}
    ours, checked = (Tables(CASES[case], values=values) for _ in range(2))
    for count in (50, 20, 0, 300, 1, 200, 400):
        pushed = pushes(generator, count)
        gradient = torch.randn(count, 16, generator=generator)
        order = torch.randperm(ROWS, generator=generator)[:count].sort().values
        pushed.insert(3, Pushed("weight", torch.randn(9, 9, generator=generator)))
        pushed.insert(5, Pushed("rows", gradient, order))
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert ours.repeated >= 5


@pytest.mark.parametrize("case", CASES)
def test_tables_have_the_bytes_of_torch(case: str) -> None:
    generator, (cls, arguments) = torch.Generator().manual_seed(2), CASES[case]
    specs = SPECS[:-1]
    ours = Tables(CASES[case], specs)
    local = {each.name: torch.nn.Parameter(InitialValues(each).whole()) for each in specs}
    optimizer = cls([*local.values()], **arguments)
    for count in (50, 20, 300, 1, 200):
        pushed = pushes(generator, count, specs)
        for name, value, rows in pushed:
            assert rows is not None
            shape = local[name].shape
            local[name].grad = as_sparse(rows.unsqueeze(0), value, shape, is_coalesced=True)
        ours.push(pushed)
        optimizer.step()
    for name, expected in local.items():
        rows = ours.store.get(name).rows(torch.arange(len(expected)))
        assert torch.equal(rows, expected)
    assert ours.repeated == (4 if case == "SGD" else 3)


def test_tables_whose_counts_of_steps_differ_are_stepped_apart() -> None:
    """The rate of Adagrad decays with the steps of each."""
    generator = torch.Generator().manual_seed(3)
    ours, checked = (Tables(CASES["Adagrad"]) for _ in range(2))
    for number in range(9):
        # Not all of them have a gradient in each step at first.
        pushed = pushes(generator, 90)[: 3 + number]
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert ours.repeated > 0


@a_few(
    "limits",
    [
        {"admission_count": 2},
        {"evict_after_writes": 3},
        {"max_rows": 60},
        {"max_bytes": 16_000, "admission_count": 2, "evict_after_writes": 2},
    ],
    "each limit has its own test beside checked steps",
    2,
)
def test_admission_and_eviction_are_those_of_checked_steps(limits: dict[str, int]) -> None:
    generator = torch.Generator().manual_seed(4)
    specs = [table_spec(name, (0, 16), NORMAL, dynamic(**limits)) for name in ("a", "b")]
    specs.append(table_spec("fixed", (ROWS, 16)))
    ours, checked = (Tables(CASES["Adagrad"], specs) for _ in range(2))
    for count in (30, 40, 20, 3, 3, 3, 30, 40, 0, 5, 5, 5, 5):
        pushed = pushes(generator, count, specs)
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    evicted = table_of(ours.store.get("a")).history().evicted_rows
    assert bool(evicted) == (limits != {"admission_count": 2})


@pytest.mark.parametrize("rows", [[5, 5], [6, 5], [2, 9, 2]])
def test_rows_in_another_order_are_checked(rows: list[int]) -> None:
    ours, checked = (Tables(CASES["Adagrad"]) for _ in range(2))
    keys = torch.tensor([3, 5, 9])
    usual = [Pushed(each.name, torch.ones(3, 16), keys) for each in SPECS[:4]]
    other = [*usual[:3], Pushed("zeros", torch.randn(len(rows), 16), torch.tensor(rows))]
    for pushed in (usual, usual, usual, other, usual):
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert ours.repeated == 2


def test_rows_that_take_long_to_find_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(5)
    server = Tables(CASES["SGD"])
    server.push(pushes(generator, 20))
    monkeypatch.setattr(row_groups, "_MOST_FOUND", 30)
    assert not server.repeats(pushes(generator, 20))
    assert server.repeats(pushes(generator, 3))


def test_rules_that_round_otherwise_for_several_tables_step_each_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(6)
    monkeypatch.setattr(same_bytes, "_is_same_apart", lambda *_: False)
    ours, checked = (Tables(CASES["Adagrad"]) for _ in range(2))
    for count in (30, 30, 60):
        pushed = pushes(generator, count)
        ours.push(pushed)
        checked.check(pushed)
    sizes = [len(each) for group in _groups(ours) for each in group._together()]
    assert ours.contents == checked.contents
    assert sizes == [1] * len(SPECS)


def _groups(server: Server) -> Sequence[row_groups.RowGroup]:
    assert server.known is not None
    return [each for each in server.known._groups if isinstance(each, row_groups.RowGroup)]


def test_new_rows_have_the_state_of_another_optimizer_too() -> None:
    ours, checked = (Tables(CASES["Adagrad"]) for _ in range(2))
    other = torch.optim.Adagrad([torch.zeros(1)], initial_accumulator_value=0.7)
    generator = torch.Generator().manual_seed(7)
    for name, count in (("one", 20), ("two", 20), ("one", 40), ("one", 90), ("two", 60)):
        for server in (ours, checked):
            if server.program.name != name:
                server.program, server.known = optimizer_program(other, name), None
        pushed = pushes(generator, count)
        ours.push(pushed)
        checked.check(pushed)
        assert ours.contents == checked.contents
    assert ours.repeated == 1


def test_a_snapshot_has_the_rows_before_steps_that_are_repeated() -> None:
    generator = torch.Generator().manual_seed(8)
    server = Tables(CASES["Adagrad"])
    for _ in range(3):
        server.push(pushes(generator, 60))
    tables = {each.name: table_of(server.store.get(each.name)) for each in SPECS}
    snapshots = {name: table.snapshot() for name, table in tables.items()}
    before = {name: table.value.storage[: len(table)].clone() for name, table in tables.items()}
    for count in (10, 60, 200):
        assert server.repeats(pushes(generator, count))
    for name, snapshot in snapshots.items():
        rows = torch.cat([*snapshot.runs(2)])
        assert torch.equal(rows, before[name])
        assert not torch.equal(tables[name].value.storage[: len(rows)], rows)


def test_rows_for_which_the_limit_has_no_memory_change_nothing() -> None:
    specs = [table_spec(f"t{number}", (100_000, 16), NORMAL) for number in range(3)]
    server = Tables(CASES["Adagrad"], specs, limit=1_500_000)
    generator = torch.Generator().manual_seed(9)
    taken = 0
    while True:
        pushed = pushes(generator, 400 + 200 * taken, specs)
        before = server.contents
        try:
            server.push(pushed)
        except ResourceExhaustedError:
            break
        server.store.recount([each.name for each in specs])
        taken += 1
    assert taken > 2
    assert server.contents == before
    known = [Pushed(each.name, torch.ones(2, 16), _first(server, each.name)) for each in specs]
    assert server.repeats(known)


def _first(server: Server, name: str) -> torch.Tensor:
    return table_of(server.store.get(name)).stored()[0][:2].long().sort().values


def test_a_step_without_memory_changes_nothing_or_says_so() -> None:
    """Wherever memory ends."""
    generator = torch.Generator().manual_seed(10)
    server = Tables(CASES["Adagrad"], SPECS[:3])
    for _ in range(3):
        server.push(pushes(generator, 30, SPECS[:3]))
    unchanged, halfway = 0, 0
    for left in range(1000):
        pushed, before = pushes(generator, 60, SPECS[:3]), server.contents
        gradients = _gradients(pushed)
        known = server.known
        assert known is not None
        assert known.begin(server.optimizers, server.program, gradients)
        try:
            with _NoMemory(left):
                known.run()
        except ResourceExhaustedError:
            unchanged += 1
            numbers = server.contents
            assert {name: numbers[name] for name in before if "rows" not in name} == {
                name: before[name] for name in before if "rows" not in name
            }
            for name, rows in before.items():
                if name.endswith(" rows"):
                    assert numbers[name][0] == rows[0]
        except DataLossError:
            halfway += 1
        else:
            break
    assert unchanged > 3
    assert halfway > 0

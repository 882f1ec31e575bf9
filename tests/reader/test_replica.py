"""A replica against a dictionary: any history of rows, taken over by increments or whole."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stratagem_proto.errors import DataLossError
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import DynamicKeys, TableSpec, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_reader.replica import Replica
from stratagem_reader.source import Version
from stratagem_storage.checkpoint.entries import KEYS, companion
from stratagem_storage.checkpoint.parts import Content, Part
from tests.full import examples
from tests.reader.test_pins import WrittenPart

State = dict[int, float]
"""The value of each key; a key has the position that it has here."""

INITIAL = -1.0
keys = st.integers(-6, 6) | st.sampled_from([-(1 << 63), (1 << 63) - 1])
states = st.lists(st.tuples(keys, st.floats(0, 8, width=16)), max_size=12).map(dict)


def spec() -> VariableSpec:
    table = VariableSpec(name="table", table=TableSpec(dynamic=DynamicKeys()))
    table.tensor.CopyFrom(spec_of(torch.empty(0, 2)))
    table.initializer.constant = INITIAL
    return table


def vectors(state: State) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.tensor([*state], dtype=torch.int64)
    return keys, torch.tensor([*state.values()]).view(-1, 1).expand(-1, 2).contiguous()


def part(number: int, before: State | None, after: State) -> WrittenPart:
    """What a server would write: all, or the positions at which something differs."""
    contents, values = [], list[torch.Tensor]()
    rows, count = StoredRows(count=len(after)), len(after)
    for each, new, old in zip(
        (Content(spec(), rows=rows), Content(companion("table", KEYS, count))),
        reversed(vectors(after)),
        reversed(vectors(before or {})),
        strict=True,
    ):
        changed = None
        if before is not None:
            kept = min(len(old), len(new))
            differs = torch.ones(len(new), dtype=torch.bool)
            differs[:kept] = (new[:kept] != old[:kept]).view(kept, new.stride(0)).any(1)
            changed = differs.nonzero().squeeze(1)
            values += [changed, new[changed]]
        else:
            values.append(new)
        contents.append(Content(each.spec, rows=each.rows, changed=changed))
    version = Version(number, b"", time.time())
    return WrittenPart(version, Part("part-0.safetensors", contents), values)


def take(replica: Replica, chain: Sequence[WrittenPart], is_whole: bool) -> None:
    replica.commit(replica.prepare(chain[-1].version, [chain], is_whole))


def assert_has(replica: Replica, state: State) -> None:
    table = replica.table("table")
    every = torch.tensor([*state, *range(-7, 8), -(1 << 63), (1 << 63) - 1])
    expected = [state.get(key, INITIAL) for key in every.tolist()]
    assert table.look_up(every, None)[:, 0].tolist() == expected
    assert sorted(table.keys().tolist()) == sorted(state)
    assert [*table.parts[0].keys.tolist()] == [*state]


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(states, st.booleans(), st.booleans()), min_size=1, max_size=10))
def test_it_has_what_a_dictionary_has(history: list[tuple[State, bool, bool]]) -> None:
    """Some versions are taken over with the ones before them at once, and some come whole."""
    replica, present, last = Replica(), dict[int, float](), dict[int, float]()
    chain, is_whole = list[WrittenPart](), True
    for number, (state, comes_whole, waits) in enumerate(history, 1):
        starts = number == 1 or comes_whole
        chain.append(part(number, None if starts else last, state))
        last = state
        if not waits:
            take(replica, chain, is_whole)
            chain, is_whole, present = [], False, state
            assert_has(replica, present)
    if chain:
        take(replica, chain, is_whole)
        assert_has(replica, last)


@given(states, states)
def test_what_does_not_continue_it_changes_nothing(first: State, second: State) -> None:
    replica = Replica()
    take(replica, [part(1, None, first)], is_whole=True)
    larger = {**first, 100: 1.0, 101: 2.0}
    # Beside a version with two rows more, whose rows are not here.
    with pytest.raises(DataLossError, match="not in the version before"):
        take(replica, [part(2, larger, {**larger, 102: 3.0})], is_whole=False)
    assert_has(replica, first)
    if first:
        # A key that another position has already.
        twice = part(2, first, {**first, 100: 1.0})
        repeated = torch.tensor([next(iter(first))]).numpy().tobytes()
        twice.replace(torch.tensor([100]).numpy().tobytes(), repeated)
        with pytest.raises(DataLossError, match="a key twice"):
            take(replica, [twice], is_whole=False)
        assert_has(replica, first)
    take(replica, [part(3, None, second)], is_whole=True)
    assert_has(replica, second)

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError, ResourceExhaustedError
from stratagem_proto.v1.update_program_pb2 import GraphInput, GraphNode
from stratagem_psserver.programs.graph_run import PreparedRun, prepare
from stratagem_psserver.programs.graphs import Binding, GraphCache, compile_graph
from tests.graph_programs import (
    ADD_TO_INPUT,
    Ref,
    node,
    number,
    program,
    read,
    tensor,
    written,
)

TERABYTE = 10**12


def prepared(
    inputs: Sequence[GraphInput], bindings: Sequence[Binding], *nodes: GraphNode
) -> PreparedRun:
    return prepare(compile_graph(program(inputs, *nodes)), bindings)


def test_a_program_writes_its_variable() -> None:
    weight, rate, gradient = torch.ones(2, 3), 0.5, torch.full((2, 3), 4.0)
    prepared(
        [written(), number(), tensor()],
        [weight, rate, gradient],
        node("scalar.neg", Ref(1)),
        node("aten.add_.Tensor", Ref(0), Ref(2), alpha=Ref(3)),
    ).run()
    assert weight.tolist() == [[-1.0] * 3] * 2
    assert gradient.tolist() == [[4.0] * 3] * 2


def test_one_program_serves_every_shape() -> None:
    cache = GraphCache()
    for shape in [(), (3,), (2, 3), (0,), (1, 2, 3, 4)]:
        weight = torch.zeros(shape)
        prepare(cache.compiled(program([written()], ADD_TO_INPUT)), [weight]).run()
        assert torch.equal(weight, torch.ones(shape))
    assert cache.compilations == 1


def test_results_take_one_number_each() -> None:
    weight = torch.tensor([[1.0, 5.0], [7.0, 3.0]])
    prepared(
        [written()],
        [weight],
        node("aten.max.dim", Ref(0), 1),
        node("aten.mul.Tensor", Ref(1), 10.0),
        node("aten.add.Tensor", Ref(2), Ref(3)),
        node("aten.copy_.default", Ref(0), Ref(4)),
    ).run()
    assert weight.tolist() == [[51.0, 70.0], [51.0, 70.0]]


def test_the_least_recently_used_program_is_forgotten_first() -> None:
    cache = GraphCache(size=2)
    programs = [program([written()], node("aten.add_.Tensor", Ref(0), float(i))) for i in range(3)]
    for index in (0, 1, 0, 2, 0, 1):
        cache.compiled(programs[index])
    assert cache.compilations == 4


# What a program may ask for that would take memory or time beyond all bounds.
HUGE = 10**9
GREEDY = [
    node("aten.full.default", [HUGE, HUGE // 1000], 1.0),
    node("aten.zeros.default", [HUGE * 1000]),
    node("aten.new_zeros.default", Ref(0), [HUGE * 1000]),
    node("aten.repeat.default", Ref(0), [HUGE * 1000]),
    node("aten.arange.default", HUGE * 1000),
    node("aten.eye.default", HUGE),
    node("aten.linspace.default", 0.0, 1.0, HUGE * 1000),
    node("aten.constant_pad_nd.default", Ref(0), [0, HUGE * 1000]),
    node("aten.expand.default", Ref(0), [HUGE * 1000, 3]),
]


@pytest.mark.parametrize("greedy", GREEDY, ids=lambda one: str(one.operation))
def test_a_terabyte_is_foreseen_before_any_of_it_is_taken(greedy: GraphNode) -> None:
    weight = torch.ones(3)
    tracemalloc.start()
    run = prepared([written()], [weight], greedy, ADD_TO_INPUT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.nbytes >= TERABYTE
    assert peak < 10 << 20
    assert weight.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "impossible",
    [
        node("aten.zeros.default", [2**62, 2**62]),
        node("aten.zeros.default", [-1]),
        node("aten.view.default", Ref(0), [4]),
        node("aten.mm.default", Ref(0), Ref(0)),
        node("aten.select.int", Ref(0), 0, 3),
        node("aten.sum.dim_IntList", Ref(0), [5]),
        node("aten.add_.Tensor", Ref(0), Ref(1)),
        node("scalar.truediv", 1.0, 0.0),
        node("aten.index.Tensor", Ref(0), [Ref(2)]),
    ],
    ids=lambda one: str(one.operation),
)
def test_what_cannot_fit_is_found_out_before_anything_runs(
    impossible: GraphNode,
) -> None:
    mask = torch.ones(3, dtype=torch.bool)
    with pytest.raises(InvalidArgumentError, match=r"^train\.py:7: ") as caught:
        prepared(
            [written(), tensor(), tensor(torch.bool)],
            [torch.ones(3), torch.ones(2), mask],
            impossible,
            ADD_TO_INPUT,
        )
    assert caught.value.location == "train.py:7"


def test_a_million_nodes_are_refused_unseen() -> None:
    long = program([written()])
    long.nodes.extend([ADD_TO_INPUT] * 1_000_000)
    with pytest.raises(ResourceExhaustedError, match="1000000 nodes"):
        GraphCache().compiled(long)


@pytest.mark.parametrize(
    ("bindings", "what"),
    [
        ([torch.ones(3)], "2 inputs, but 1"),
        ([torch.ones(3), 1], r"number of torch\.float64, but int"),
        ([torch.ones(3), True], "but bool"),
        ([torch.ones(3), torch.ones(())], r"but torch\.float32"),
        ([2.0, 1.0], "but float"),
        ([torch.ones(3, dtype=torch.float64), 1.0], r"but torch\.float64"),
    ],
)
def test_bindings_have_to_be_what_the_inputs_say(bindings: list[Binding], what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what):
        prepared([written(), number()], bindings, ADD_TO_INPUT)


def test_what_is_written_is_bound_once() -> None:
    weight = torch.ones(3)
    with pytest.raises(InvalidArgumentError, match="bind each variable once"):
        prepared([written(), read()], [weight, weight], ADD_TO_INPUT)


ROWS = torch.tensor([0, 2, 99])

# The last step of each fails for reasons that only contents or kernels know.
FAILING = [
    node("aten.index_add_.default", Ref(0), 0, Ref(1), Ref(2)),
    node("aten.index_put_.default", Ref(0), [Ref(1)], Ref(2)),
    node("aten.index_copy_.default", Ref(0), 0, Ref(1), Ref(2)),
    node("aten.fill_.Scalar", Ref(0), 1e300),
    node("aten.bitwise_not.default", Ref(0)),
    node("scalar.truediv", 1.0, Ref(3)),
]


@pytest.mark.parametrize("failing", FAILING, ids=lambda one: str(one.operation))
def test_a_program_that_fails_leaves_every_byte_as_it_was(failing: GraphNode) -> None:
    weight = torch.randn(4, 2)
    weight[1, 1] = math.nan
    before = weight.clone()
    good = torch.tensor([3, 1, 3])
    run = prepared(
        [written(), tensor(torch.int64), tensor(), number(), tensor(torch.int64)],
        [weight, ROWS.clone(), torch.ones(3, 2), 0.5, good],
        node("aten.index_add_.default", Ref(0), 0, Ref(4), Ref(2)),
        node("aten.select.int", Ref(0), 0, 2),
        node("aten.mul_.Tensor", Ref(6), 3.0),
        node("aten.index_put_.default", Ref(0), [Ref(4)], Ref(2), True),
        node("aten.mul_.Tensor", Ref(0), 2.0),
        failing,
        ADD_TO_INPUT,
    )
    late = PreparedRun(run.graph, [*run.bindings[:3], 0.0, good], run.nbytes, 0, 0)
    with pytest.raises(InvalidArgumentError, match=r"^train\.py:7: "):
        late.run()
    assert weight.numpy().tobytes() == before.numpy().tobytes()


def test_a_division_by_zero_half_way_leaves_integers_as_they_were() -> None:
    count = torch.full((1000,), 6)
    run = prepared(
        [written(torch.int64), tensor(torch.int64)],
        [count, torch.tensor([2] * 999 + [0])],
        node("aten.floor_divide_.Tensor", Ref(0), Ref(1)),
    )
    with pytest.raises(InvalidArgumentError, match=r"^train\.py:7: "):
        run.run()
    assert count.tolist() == [6] * 1000


def test_a_sparse_update_keeps_aside_only_the_rows_it_touches() -> None:
    table, rows = torch.zeros(100_000, 16), torch.tensor([5, 9, 5])
    update = node("aten.index_add_.default", Ref(0), 0, Ref(1), Ref(2))
    run = prepared(
        [written(), tensor(torch.int64), tensor()],
        [table, rows, torch.ones(3, 16)],
        update,
    )
    run.run()
    assert table[5].tolist() == [2.0] * 16
    assert run.nbytes < table.nbytes / 1000


def test_the_last_write_of_a_whole_variable_keeps_nothing_aside() -> None:
    weight = torch.zeros(1000)
    assert prepared([written()], [weight], ADD_TO_INPUT).nbytes <= weight.nbytes


def test_memory_is_counted_until_its_last_use() -> None:
    weight = torch.zeros(1000)
    chain = [node("aten.neg.default", Ref(number)) for number in range(50)]
    run = prepared([written()], [weight], *chain, node("aten.copy_.default", Ref(0), Ref(50)))
    assert run.nbytes == 2 * weight.nbytes


def test_a_result_kept_by_a_view_is_counted() -> None:
    weight = torch.zeros(1000)
    run = prepared(
        [written()],
        [weight],
        node("aten.neg.default", Ref(0)),
        node("aten.view.default", Ref(1), [10, 100]),
        node("aten.neg.default", Ref(0)),
        node("aten.neg.default", Ref(0)),
        node("aten.add.Tensor", Ref(3), Ref(4)),
        node("aten.view.default", Ref(2), [1000]),
        node("aten.add_.Tensor", Ref(0), Ref(6)),
    )
    assert run.nbytes == 4 * weight.nbytes


def test_nothing_of_a_run_requires_gradients() -> None:
    weight = torch.zeros(3)
    prepared([written()], [weight], ADD_TO_INPUT).run()
    assert not weight.requires_grad

"""Replicas in lock step, and what they do together."""

from __future__ import annotations

import contextvars
import os
import threading
from typing import Any

import pytest
import torch

import stratagem
from stratagem import IndexedSlices, PerReplica, RunOptions
from tests.client.two_replicas import TwoReplicas, number

STRUCTURE = "make every replica return, or pass on, values of the same structure"


@pytest.fixture
def strategy() -> TwoReplicas:
    return TwoReplicas()


def replica() -> stratagem.ReplicaContext:
    found = stratagem.get_replica_context()
    assert found is not None
    return found


def test_replicas_take_turns_from_one_merge_call_to_the_next(
    strategy: TwoReplicas,
) -> None:
    """RUN-1: observed trace of two replicas with one merge call."""
    trace: list[str] = []

    def fn() -> None:
        trace.append(f"a{number()}")
        replica().merge_call(lambda strategy: trace.append("merge"))
        trace.append(f"b{number()}")

    strategy.run(fn)
    assert trace == ["a0", "a1", "merge", "b0", "b1"]


def test_each_replica_gets_its_components_of_the_arguments(
    strategy: TwoReplicas,
) -> None:
    """STR-20, REG-10: args and kwargs are searched recursively."""
    inputs = {"x": [PerReplica((1, 2))], "y": 10}

    def fn(nest: dict[str, Any], *, z: int) -> tuple[int, int]:
        return nest["x"][0] * nest["y"], z

    scaled, same = strategy.run(fn, (inputs,), {"z": PerReplica((5, 5))})
    assert scaled.values == (10, 20)
    assert same == 5


@pytest.mark.parametrize("args", [torch.ones(2), "ab", 5, {"a": 1}])
def test_positional_arguments_come_in_a_list_or_tuple(
    strategy: TwoReplicas, args: Any
) -> None:
    """STR-20: “positional args must be a list or tuple”."""
    with pytest.raises(ValueError, match="positional args must be a list or tuple"):
        strategy.run(lambda *_: None, args)


def test_a_single_replica_runs_in_the_calling_thread() -> None:
    """RUN-2."""
    one = TwoReplicas(replicas=1)
    result = one.run(lambda x: (threading.current_thread(), x), (PerReplica((7,)),))
    assert result == (threading.current_thread(), 7)


def test_replicas_see_the_modes_of_the_calling_thread(strategy: TwoReplicas) -> None:
    """RUN-3: gradient recording state, eager context."""
    setting = contextvars.ContextVar("setting", default="unset")
    setting.set("set")

    def look() -> tuple[Any, ...]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        return torch.is_grad_enabled(), product.dtype, setting.get()

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert strategy.run(look) == (False, torch.bfloat16, "set")
    assert strategy.run(look) == (True, torch.float32, "set")
    with torch.inference_mode():
        assert strategy.run(torch.is_inference_mode_enabled)


def test_each_replica_has_its_device(strategy: TwoReplicas) -> None:
    """RUN-3, REP-5: the caller's device scope is replaced by the replica's."""
    with stratagem.device("CPU:7"):
        devices = strategy.run(lambda: replica().devices)
    assert devices[0].values == strategy.extended.worker_devices
    assert devices[0].values[1].endswith("/device:CPU:1")


class Trouble(Exception):
    pass


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_replica_stops_the_others(
    strategy: TwoReplicas, failing: int
) -> None:
    """RUN-5: the original exception object is raised from run."""
    trouble, went_on = Trouble(), []

    def fn() -> None:
        if number() == failing:
            raise trouble
        replica().merge_call(lambda strategy: None)
        went_on.append(number())

    with pytest.raises(Trouble) as caught:
        strategy.run(fn)
    assert caught.value is trouble
    assert not went_on
    assert strategy.run(number).values == (0, 1)


def test_a_stopped_replica_cleans_up(strategy: TwoReplicas) -> None:
    """RUN-5: they see an internal stop request at their next pause."""
    cleaned = []

    def fn() -> None:
        if number() == 1:
            raise Trouble
        try:
            replica().merge_call(lambda strategy: None)
        except Exception:
            pytest.fail("a stop request is no Exception")
        finally:
            cleaned.append(number())

    with pytest.raises(Trouble):
        strategy.run(fn)
    assert cleaned == [0]


def test_errors_of_merge_functions_come_out_of_run(strategy: TwoReplicas) -> None:
    """MRG-4, RUN-5: in merge_fn, in fn after merge, in merge inside merge."""

    def fail(*_: object) -> None:
        raise Trouble

    def after_merge() -> None:
        replica().merge_call(lambda strategy: None)
        fail()

    def within_merge() -> None:
        replica().merge_call(lambda s: s.run(lambda: replica().merge_call(fail)))

    for fn in (lambda: replica().merge_call(fail), after_merge, within_merge):
        with pytest.raises(Trouble):
            strategy.run(fn)
    assert not stratagem.has_strategy()


def test_a_merge_function_gets_the_strategy_and_merged_arguments(
    strategy: TwoReplicas,
) -> None:
    """MRG-1: called once, in the main thread, Cross context."""
    main, calls = threading.current_thread(), []

    def merge(given: stratagem.Strategy, x: Any, *, k: Any) -> None:
        calls.append((x.values, k))
        assert given is strategy
        assert threading.current_thread() is main
        assert stratagem.in_cross_replica_context()

    strategy.run(lambda: replica().merge_call(merge, (number(),), {"k": "same"}))
    assert calls == [((0, 1), "same")]


def test_each_replica_gets_its_component_of_what_a_merge_returns(
    strategy: TwoReplicas,
) -> None:
    """MRG-2: other leaves given to all; a variable is passed as itself."""
    with strategy.scope():
        variable = stratagem.Variable(1.0)

    def fn() -> tuple[Any, ...]:
        result = {"a": [PerReplica((1, 2))], "b": "all", "v": variable}
        mine = replica().merge_call(lambda strategy: result)
        return mine["a"][0], mine["b"], mine["v"]

    component, same, container = strategy.run(fn)
    assert component.values == (1, 2)
    assert same == "all"
    assert container is variable


def test_replicas_have_to_make_the_same_number_of_merge_calls(
    strategy: TwoReplicas,
) -> None:
    """MRG-3: RuntimeError “different number of” … “merge_call”."""

    def fn() -> None:
        if number() == 1:
            replica().merge_call(lambda strategy: None)

    with pytest.raises(RuntimeError, match=r"different number of.*merge_call"):
        strategy.run(fn)


def test_a_merge_function_records_gradients_as_the_first_replica_does(
    strategy: TwoReplicas,
) -> None:
    """MRG-5: gradient recording state is that of replica 0's call site."""

    def fn() -> bool:
        with torch.set_grad_enabled(number() == 1):
            merged: bool = replica().merge_call(lambda s: torch.is_grad_enabled())
        return merged

    assert strategy.run(fn) is False


def test_replicas_may_be_run_within_a_merge_function(strategy: TwoReplicas) -> None:
    """MRG-6: its PerReplica result is distributed to the waiting replicas."""
    result = strategy.run(
        lambda: replica().merge_call(lambda s: s.run(number)) * 10 + number()
    )
    assert result.values == (0, 11)


def test_replicas_may_be_run_within_an_update(strategy: TwoReplicas) -> None:
    """CTX-21."""
    with strategy.scope():
        variable = stratagem.Variable(1.0)
    result = strategy.extended.update(variable, lambda v: strategy.run(number))
    assert result.values == (0, 1)


def test_results_of_different_structure_are_refused(strategy: TwoReplicas) -> None:
    """REG-1, RUN-5."""
    with pytest.raises(stratagem.InvalidArgumentError, match=STRUCTURE):
        strategy.run(lambda: [0] * (number() + 1))


def test_replicas_overlap_where_they_may(strategy: TwoReplicas) -> None:
    """RUN-1, api: `RunOptions(run_concurrently=True)` lets them overlap."""
    meeting = threading.Barrier(2, timeout=60)
    together = RunOptions(run_concurrently=True)

    def fn() -> Any:
        meeting.wait()
        return replica().merge_call(lambda s, x: s.reduce("sum", x), (number() + 1,))

    assert strategy.run(fn, options=together) == 3


def test_concurrent_replicas_stop_when_one_fails(strategy: TwoReplicas) -> None:
    """RUN-5 with overlapping replicas."""

    def fn() -> None:
        if number() == 1:
            raise Trouble
        replica().merge_call(lambda strategy: None)

    with pytest.raises(Trouble):
        strategy.run(fn, options=RunOptions(run_concurrently=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_replicas_run_in_a_forked_child(strategy: TwoReplicas) -> None:
    strategy.run(number)
    child = os.fork()
    if child == 0:
        right = strategy.run(number).values == (0, 1)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_all_reduce_gives_every_replica_the_result(strategy: TwoReplicas) -> None:
    """REP-7: same structure; integers become float64 by a mean (RED-7)."""

    def fn() -> Any:
        one, two = torch.tensor(1 + number()), torch.tensor([3.0, 4.0])
        return (
            replica().all_reduce("sum", {"a": one, "b": [two]}),
            replica().all_reduce(stratagem.ReduceOp.MEAN, one),
        )

    total, mean = strategy.run(fn)
    assert total["a"].values == (3, 3)
    assert [value.tolist() for value in total["b"][0].values] == [[6.0, 8.0]] * 2
    assert mean.values == (1.5, 1.5)
    assert mean.values[0].dtype == torch.float64


def test_what_one_replica_does_to_its_result_does_not_show_on_another(
    strategy: TwoReplicas,
) -> None:
    """REP-7: each gets the full result."""

    def fn() -> torch.Tensor:
        total: torch.Tensor = replica().all_reduce("sum", torch.ones(2))
        return total.div_(2)

    results = strategy.run(fn).values
    assert [value.tolist() for value in results] == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", (50.0, 50.0)), ("mean", (25,) * 2)]
)
def test_all_reduce_is_differentiable(
    strategy: TwoReplicas, op: str, expected: tuple[float, float]
) -> None:
    """REP-7: the gradient of all-sum is all-sum of the incoming gradients."""

    def fn() -> torch.Tensor | None:
        x = torch.tensor(1.0, requires_grad=True)
        weight = 20.0 + 10.0 * number()
        (weight * replica().all_reduce(op, x)).backward()
        return x.grad

    assert strategy.run(fn).values == expected


def test_all_reduce_keeps_rows_sparse(strategy: TwoReplicas) -> None:
    """REP-7, RED-23: IndexedSlices leaves stay sparse."""

    def fn() -> Any:
        index = torch.tensor([number()])
        rows = IndexedSlices(torch.ones(1, 2) + number(), index, (3, 2))
        return replica().all_reduce("mean", [rows, torch.ones(1)])

    rows, _ = strategy.run(fn)
    for value in rows.values:
        assert value.indices.tolist() == [0, 1]
        assert value.values.tolist() == [[0.5, 0.5], [1.0, 1.0]]


def test_all_reduce_of_nothing_is_nothing(strategy: TwoReplicas) -> None:
    """REP-9."""
    assert strategy.run(lambda: replica().all_reduce("sum", {})) == {}


@pytest.mark.parametrize(
    ("op", "value"), [(3, torch.ones(1)), ("max", torch.ones(1)), ("sum", 1.0)]
)
def test_all_reduce_refuses_what_is_no_reduction_or_no_tensor(
    strategy: TwoReplicas, op: Any, value: Any
) -> None:
    """REP-7: bad op ValueError."""
    with pytest.raises(stratagem.InvalidArgumentError):
        strategy.run(lambda: replica().all_reduce(op, value))


def test_all_reduce_in_the_default_replica_returns_the_value() -> None:
    """REP-7, DEF-3."""
    assert replica().all_reduce("sum", torch.tensor(2.0)) == 2.0


def test_a_replica_number_is_an_integer_a_tensor_or_none(
    strategy: TwoReplicas,
) -> None:
    """REP-1: ValueError “integer, a Tensor or None”."""
    with pytest.raises(ValueError, match="integer, a Tensor or None"):
        stratagem.ReplicaContext(strategy, "0")  # type: ignore[arg-type]


def test_replica_numbers_are_made_anew(strategy: TwoReplicas) -> None:
    """REP-2: int32 scalar tensor, newly made at each access."""

    def fn() -> None:
        first = replica().replica_id_in_sync_group
        second = replica().replica_id_in_sync_group
        assert isinstance(first, torch.Tensor)
        assert first is not second
        assert first == second
        assert first.dtype == torch.int32

    strategy.run(fn)

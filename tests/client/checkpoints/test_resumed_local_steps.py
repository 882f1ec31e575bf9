"""Programs of local steps that go on after the end of a process, or of all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import stratagem
from stratagem import FailedPreconditionError, LocalSteps, ParameterServerStrategy, Variable
from stratagem.partitioners import FixedShardsPartitioner
from tests.client.checkpoints.test_counted_steps import Counter, Death
from tests.client.clusters import Cluster, running
from tests.faults import FaultyProxy, Passing, Verdict
from tests.full import a_few

EVERY, STOP = 3, 12
Make = Callable[[list[nn.Parameter]], Optimizer]
ADAM: Make = partial(Adam, lr=0.1)
OUTER: Make = partial(SGD, lr=0.7, momentum=0.9, nesterov=True)
Values = list[torch.Tensor]


class Program:
    """Two matrices, on a server each, whose gradients follow from the step."""

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        inner: Make = ADAM,
        keep_state: int | None = 1,
        worker: int = 0,
        compression: str | None = None,
    ) -> None:
        self.strategy, self.worker, self.taken = strategy, worker, list[int]()
        with strategy.scope():
            self.model = nn.ParameterList([torch.zeros(4, 2) for _ in range(2)])
        self.inner = inner(list(self.model))
        settings: dict[str, Any] = {"keep_state": keep_state, "compression": compression}
        self.optimizer = LocalSteps(self.inner, OUTER, every=EVERY, **settings)

    def step(self, number: int) -> None:
        self.taken.append(number)
        generator = torch.Generator().manual_seed(100 * self.worker + number)
        for parameter in self.model:
            # The same wherever the parameter is: what was shared may be where it begins again.
            parameter.grad = torch.randn(4, 2, generator=generator)
        self.optimizer.step()

    def train(self, stop: int, death: int = -1) -> None:
        """Takes the steps that are left; dies behind one."""
        for number in self.strategy.steps(stop):
            self.strategy.run(self.step, args=(number,))
            if number == death:
                raise Death

    def values(self) -> Values:
        """What the servers have, and then what this worker's own optimizer has."""
        (outer,) = self.optimizer.outer
        shared = [one for group in outer.param_groups for one in group["params"]]
        self.strategy.refresh()
        self.optimizer.adopt()
        own = [value for state in self.inner.state.values() for value in state.values()]
        return [one.detach().clone() for one in [*shared, *own]]


def trained(
    cluster: Cluster,
    folder: Path,
    stop: int = STOP,
    death: int = -1,
    compression: str | None = None,
    **settings: Any,
) -> Values:
    with cluster.strategy(**settings) as strategy:
        program = Program(strategy, compression=compression)
        strategy.resume(folder)
        program.train(stop, death)
        return program.values()


def uninterrupted(stop: int = STOP, compression: str | None = None, **settings: Any) -> Values:
    with running(2) as cluster, cluster.strategy(**settings) as strategy:
        program = Program(strategy, compression=compression)
        program.train(stop)
        return program.values()


def assert_equal(found: Values, expected: Values) -> None:
    assert len(found) == len(expected) > 2
    assert all(map(torch.equal, found, expected)), (found, expected)


@a_few("consistency", ["async", "bounded", "sync"], "what a step tells is asked before the mode")
def test_a_worker_that_is_started_again_takes_the_steps_since_its_last_share_again(
    tmp_path: Path, consistency: str
) -> None:
    with running(2) as cluster:
        for death in (0, 1, 2, 4, 5, 5, 6, 10):
            with pytest.raises(Death):
                trained(cluster, tmp_path, death=death, consistency=consistency)
        found = trained(cluster, tmp_path, consistency=consistency)
    assert_equal(found, uninterrupted())


@pytest.mark.parametrize("parts", [1, 2])
@a_few("consistency", ["async", "sync"], "what a step tells is asked before the mode")
def test_what_compression_has_lost_is_there_again_whatever_step_a_process_ended_behind(
    tmp_path: Path, consistency: str, parts: int
) -> None:
    settings: dict[str, Any] = {"consistency": consistency, "compression": "int4"}
    if parts > 1:
        settings["variable_partitioner"] = FixedShardsPartitioner(parts)
    with running(2) as cluster:
        for death in (1, 2, 4, 5, 5, 6, 10):
            with pytest.raises(Death):
                trained(cluster, tmp_path, death=death, **settings)
        found = trained(cluster, tmp_path, **settings)
    assert_equal(found, uninterrupted(**settings))


def test_steps_are_taken_again_from_the_last_share_that_servers_know_of(tmp_path: Path) -> None:
    positions = []
    with running(2) as cluster:
        for death in (1, 4, 7):
            with cluster.strategy() as strategy, pytest.raises(Death):
                program = Program(strategy)
                positions.append(strategy.resume(tmp_path).position)
                program.train(STOP, death)
        with cluster.strategy() as strategy:
            program = Program(strategy)
            positions.append(strategy.resume(tmp_path).position)
    assert positions == [0, 0, 0, 3]


@a_few("servers", [2, 1, 3], "servers read parts of others")
@pytest.mark.parametrize("saved", range(1, 8))
def test_a_checkpoint_has_what_the_last_share_has_made_and_the_state_after_it(
    tmp_path: Path, saved: int, servers: int
) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        strategy.resume(tmp_path)
        program.train(saved)
        strategy.save(tmp_path)
    with running(servers) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        run = strategy.resume(tmp_path)
        assert run.position == saved // EVERY * EVERY
        program.train(STOP)
        found = program.values()
    assert_equal(found, uninterrupted())


class CutFrom:
    """Judges that no frame of calls passes from the n-th on."""

    def __init__(self, number: int, verdict: Verdict) -> None:
        self._left, self._verdict = number, verdict

    def __call__(self, passing: Passing) -> Verdict:
        self._left -= passing.carries_message
        return Verdict.PASS if self._left >= 0 else self._verdict


@a_few("verdict", [Verdict.CUT_AFTER, Verdict.CUT_BEFORE], "frames are many")
@a_few("number", [6, 0, 2, 4, 8, 10, 12, 16], "frames are many")
def test_a_worker_that_ends_within_a_share_has_shared_once_and_its_state_is_that_after_it(
    tmp_path: Path, number: int, verdict: Verdict
) -> None:
    ending = 2 * EVERY - 1
    with running(2) as inner, FaultyProxy(inner.servers[1]) as proxy:
        cluster = Cluster([inner.servers[0], proxy.address], 1)
        try:
            with cluster.strategy(connect_seconds=0.3) as strategy:
                program = Program(strategy)
                strategy.resume(tmp_path)
                for step in strategy.steps(STOP):
                    if step == ending:
                        proxy.judge = CutFrom(number, verdict)
                    strategy.run(program.step, args=(step,))
                    if step == ending:
                        raise Death
        except (Death, stratagem.StratagemError):
            pass
        proxy.judge = lambda _: Verdict.PASS
        found = trained(cluster, tmp_path)
    torch.testing.assert_close(found, uninterrupted(), rtol=1e-4, atol=1e-5)


def test_workers_go_on_with_their_own_states_and_a_further_one_begins_with_none(
    tmp_path: Path,
) -> None:
    def program(
        strategy: ParameterServerStrategy, worker: int, restores: bool
    ) -> Mapping[int, Any]:
        program = Program(strategy, worker=worker)
        if restores:
            strategy.restore(tmp_path)
            strategy.barrier("restored")
            return copy.deepcopy(program.optimizer.state_dict()["state"])
        program.train(EVERY)
        strategy.barrier("trained")
        strategy.save(tmp_path)
        strategy.barrier("saved")
        return copy.deepcopy(program.optimizer.state_dict()["state"])

    with running(2, num_workers=2) as cluster:
        saved = cluster.run(partial(program, restores=False))
    assert not torch.equal(saved[0][0]["exp_avg"], saved[1][0]["exp_avg"])
    with running(2, num_workers=3) as cluster:
        restored = cluster.run(partial(program, restores=True))
    torch.testing.assert_close(restored, [*saved, {}], rtol=0, atol=0)
    with running(1, num_workers=1) as cluster:
        restored = cluster.run(partial(program, restores=True))
    torch.testing.assert_close(restored, saved[:1], rtol=0, atol=0)


def test_parameters_in_parts_have_their_state_in_parts(tmp_path: Path) -> None:
    def found(servers: int) -> Values:
        settings: dict[str, Any] = {"variable_partitioner": FixedShardsPartitioner(2)}
        with running(servers) as cluster:
            return trained(cluster, tmp_path, EVERY, **settings)

    with running(2) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        strategy.resume(tmp_path)
        program.train(EVERY)
        strategy.save(tmp_path)
        expected = program.values()
    assert_equal(found(2), expected)


def test_states_that_are_kept_more_rarely_are_those_of_an_earlier_share(tmp_path: Path) -> None:
    with running(2) as cluster:
        with cluster.strategy() as strategy, pytest.raises(Death):
            program = Program(strategy, keep_state=2)
            strategy.resume(tmp_path)
            program.train(STOP, death=3 * EVERY)
        with cluster.strategy() as strategy:
            program = Program(strategy, keep_state=2)
            assert strategy.resume(tmp_path).position == 2 * EVERY
            steps = {int(one["step"]) for one in program.inner.state.values()}
            assert steps == {2 * EVERY}


def test_a_process_that_neither_resumes_nor_restores_has_its_state_back() -> None:
    with running(2) as cluster:
        with cluster.strategy() as strategy:
            program = Program(strategy)
            for number in range(EVERY):
                program.step(number)
            expected = program.values()
        with cluster.strategy() as strategy:
            assert_equal(Program(strategy).values(), expected)


def test_data_that_are_registered_go_on_where_the_last_share_was(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        program, data = Program(strategy), Counter()
        strategy.register_for_checkpointing("data", data)
        for number in range(2 * EVERY + 2):
            data.count += 1
            strategy.run(program.step, args=(number,))
        strategy.save(tmp_path)
    with running(1) as cluster, cluster.strategy() as strategy:
        program, data = Program(strategy), Counter()
        strategy.register_for_checkpointing("data", data)
        strategy.restore(tmp_path)
        assert data.count == 2 * EVERY


def test_the_last_steps_of_a_loop_are_shared_behind_it_once(tmp_path: Path) -> None:
    def train(strategy: ParameterServerStrategy, die: bool, folder: Path = tmp_path) -> Values:
        program = Program(strategy)
        run = strategy.resume(folder)
        for _ in range(2):
            program.train(EVERY + 1)
            program.optimizer.share()
            program.optimizer.share()
        if die:
            raise Death
        run.finish()
        return program.values()

    with running(2) as cluster:
        for die in (True, False):
            with cluster.strategy() as strategy:
                try:
                    found = train(strategy, die)
                except Death:
                    continue
    with running(2) as cluster, cluster.strategy() as strategy:
        assert_equal(found, train(strategy, die=False, folder=tmp_path / "other"))


def test_a_run_does_not_end_with_steps_that_were_not_shared(tmp_path: Path) -> None:
    with running(1) as cluster, cluster.strategy() as strategy:
        program = Program(strategy)
        run = strategy.resume(tmp_path)
        program.train(EVERY + 1)
        with pytest.raises(FailedPreconditionError, match="were not shared"):
            run.finish()
        program.optimizer.share()
        run.finish()


def test_a_program_without_a_cluster_goes_on_likewise(tmp_path: Path) -> None:
    for saved in range(1, 2 * EVERY):
        folder = tmp_path / str(saved)
        strategy = ParameterServerStrategy()
        program = Program(strategy)
        strategy.resume(folder)
        program.train(saved)
        strategy.save(folder)
        strategy = ParameterServerStrategy()
        program = Program(strategy)
        run = strategy.resume(folder)
        assert run.position == saved // EVERY * EVERY
        program.train(STOP)
        assert_equal(program.values(), uninterrupted())
        run.finish()


def _made(strategy: ParameterServerStrategy, **settings: Any) -> LocalSteps:
    with strategy.scope():
        model = nn.ParameterList([torch.zeros(2) for _ in range(2)])
    return LocalSteps(SGD(model.parameters(), lr=1.0), **settings)


def _keeps_nothing(strategy: ParameterServerStrategy, folder: Path) -> None:
    kept = _made(strategy, every=2)
    strategy.resume(folder)
    assert kept


def _seconds(strategy: ParameterServerStrategy, folder: Path) -> None:
    kept = _made(strategy, seconds=1.0, keep_state=1)
    strategy.resume(folder)
    assert kept


def _counted_fragments(strategy: ParameterServerStrategy, folder: Path) -> None:
    kept = _made(strategy, every=2, fragments=2)
    next(strategy.steps(2))
    assert kept


def _two(strategy: ParameterServerStrategy, folder: Path) -> None:
    kept = [_made(strategy, every=2, keep_state=1) for _ in range(2)]
    strategy.resume(folder)
    assert kept


def _behind(strategy: ParameterServerStrategy, folder: Path) -> None:
    strategy.resume(folder)
    _made(strategy, every=2, keep_state=1)


def _uncounted(strategy: ParameterServerStrategy, folder: Path) -> None:
    program = Program(strategy)
    strategy.resume(folder)
    program.step(0)


def _besides(strategy: ParameterServerStrategy, folder: Path, first: bool) -> None:
    with strategy.scope():
        used = Variable(0.0)
    program = Program(strategy)
    strategy.resume(folder)
    for number in strategy.steps(STOP):
        if first:
            used.assign_add(1.0)
        strategy.run(program.step, args=(number,))
        used.assign_add(1.0)


_REFUSED: Mapping[str, tuple[Callable[[ParameterServerStrategy, Path], object], str]] = {
    "keeps nothing": (_keeps_nothing, "keep_state=1"),
    "seconds": (_seconds, "shares after so many seconds"),
    "fragments": (_counted_fragments, "fragments one by one"),
    "two": (_two, "more than once"),
    "behind": (_behind, "made after resume"),
    "uncounted": (_uncounted, "LocalSteps steps outside of a loop"),
    "besides, before": (partial(_besides, first=True), "has changed variables before"),
    "besides": (partial(_besides, first=False), "changed a variable in a step"),
}


@pytest.mark.parametrize("what", _REFUSED)
def test_what_would_count_twice_or_not_at_all_is_refused(tmp_path: Path, what: str) -> None:
    program, message = _REFUSED[what]
    with (
        running(1) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(FailedPreconditionError, match=message),
    ):
        program(strategy, tmp_path)


def test_a_state_that_cannot_be_kept_is_refused_by_name() -> None:
    class Counting(SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["taken"] = 1
            return super().step(closure)

    with (
        running(1) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(stratagem.InvalidTypeError, match="'taken' in the state of Counting"),
    ):
        Program(strategy, inner=partial(Counting, lr=0.1))

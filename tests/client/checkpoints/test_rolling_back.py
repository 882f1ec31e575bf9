"""Programs that count their steps and go back to a checkpoint together."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem import DeadlineExceededError, FailedPreconditionError, ParameterServerStrategy
from stratagem._parameter_server.checkpoints.restoring import Restoration
from tests.client.checkpoints.test_counted_steps import Death, build
from tests.client.clusters import running
from tests.full import a_few


def test_workers_roll_back_together_and_go_on_from_their_positions(tmp_path: Path) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> tuple[list[int], float]:
        (count, _) = build(strategy)
        taken, is_back = [], False
        for number in strategy.steps(6):
            taken.append(number)
            strategy.run(lambda: count.assign_add(1.0))
            if number == 1:
                strategy.barrier()
                strategy.save(tmp_path)
                strategy.barrier()
            if number == 4 and not is_back:
                is_back = True
                assert strategy.roll_back(tmp_path).position == 2
                assert float(count.numpy()) == 4.0
                strategy.barrier()
        strategy.barrier()
        return taken, float(count.numpy())

    with running(2, num_workers=2) as cluster:
        results = cluster.run(program)
    assert results == 2 * [([0, 1, 2, 3, 4, 2, 3, 4, 5], 12.0)]


def test_nobody_goes_back_to_a_checkpoint_that_does_not_say_how_far_all_were(
    tmp_path: Path,
) -> None:
    def program(strategy: ParameterServerStrategy, worker: int) -> tuple[list[int], float]:
        (count, _) = build(strategy)
        strategy.barrier()
        strategy.save(tmp_path / "before")
        strategy.barrier()
        taken = []
        for number in strategy.steps(3):
            taken.append(number)
            strategy.run(lambda: count.assign_add(1.0))
            if number == 1:
                with pytest.raises(FailedPreconditionError, match="says of nobody how many"):
                    strategy.roll_back(tmp_path / "before")
        strategy.barrier()
        strategy.save(tmp_path / "first loop")
        strategy.barrier()
        for _ in strategy.steps(1):
            strategy.run(lambda: count.assign_add(1.0))
        for _ in strategy.steps(1):
            with pytest.raises(FailedPreconditionError, match=r"has 3 steps .* begins after 4"):
                strategy.roll_back(tmp_path / "first loop")
        strategy.barrier()
        return taken, float(count.numpy())

    with running(2, num_workers=2) as cluster:
        assert cluster.run(program) == 2 * [([0, 1, 2], 8.0)]


def test_one_worker_goes_back_to_what_says_how_far_it_was(tmp_path: Path) -> None:
    with running(2) as cluster, cluster.strategy() as strategy:
        (count, _) = build(strategy)
        strategy.save(tmp_path)
        for number in strategy.steps(2):
            count.assign_add(1.0)
            if number == 1:
                with pytest.raises(FailedPreconditionError, match="says of nobody how many"):
                    strategy.restore(tmp_path)
        assert float(count.numpy()) == 2.0


def roll_back_once(strategy: ParameterServerStrategy, folder: Path) -> list[float]:
    """Adds in 4 steps; after the third, all go back to the first, once."""
    variables = build(strategy)
    if (folder / "latest").exists():
        strategy.restore(folder)
    for number in strategy.steps(4):
        strategy.run(lambda: [variable.assign_add(1.0) for variable in variables])
        if number == 0:
            strategy.barrier()
            strategy.save(folder)
            strategy.barrier()
        if number == 2 and not (folder / "back").exists():
            strategy.roll_back(folder)
            (folder / "back").touch()
    strategy.barrier()
    return [float(variable.numpy()) for variable in variables]


@a_few(
    "replaced",
    [[], [0], pytest.param([1], marks=pytest.mark.full("either server may be first")), [0, 1]],
    "any server may be the one that was replaced",
)
def test_a_chief_that_dies_while_all_go_back_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: list[int]
) -> None:
    replace = Restoration.replace

    def die(restoration: Restoration) -> None:
        restoration._wanted = {server: restoration._wanted[server] for server in replaced}
        replace(restoration)
        raise Death

    def first(strategy: ParameterServerStrategy, worker: int) -> None:
        error, why = (DeadlineExceededError, "chief has not restored") if worker else (Death, None)
        with pytest.raises(error, match=why):
            roll_back_once(strategy, tmp_path)

    with running(2, num_workers=2) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(Restoration, "replace", die)
            cluster.run(first, peer_seconds=3)
        if len(replaced) == 1:
            with cluster.strategy(1) as strategy:
                build(strategy)
                with pytest.raises(FailedPreconditionError, match="has ended in its midst"):
                    next(strategy.steps(4))
        results = cluster.run(lambda strategy, worker: roll_back_once(strategy, tmp_path))
    assert results == 2 * [[8.0, 8.0]]

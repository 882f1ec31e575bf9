"""A policy that balances a pole, trained by a learner on what actors in other processes collect.

    stratagem run --ps 1 --workers 1 examples/cartpole.py [--updates 60] [--actors 2]

The learner takes PPO steps (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) on a parameter
server and publishes the policy after each update. Actors follow it with a `stratagem.Reader`: all
steps of a rollout are taken by one version of the policy, which the rollout names, and the learner
refuses rollouts of versions that are too old.
"""

from __future__ import annotations

import multiprocessing
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from signal import SIGTERM
from threading import Thread
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from matplotlib import pyplot
from torch import Tensor, nn
from torch.distributions import Categorical
from tqdm import tqdm

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver

GAMES, STEPS = 8, 128  # of an actor at a time, and of a rollout
DISCOUNT, SMOOTHING, CLIP, ENTROPY, RATE, PASSES = 0.99, 0.95, 0.2, 0.01, 3e-3, 4
MOST_BEHIND = 2  # versions


class Policy(nn.Module):
    """The logits of two actions, and the value of what was observed."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.action, self.value = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(observed)
        return self.action(features), self.value(features).squeeze(-1)


class Rollout(NamedTuple):
    """What an actor saw and did; arrays of (STEPS, GAMES), float32 where nothing else is said."""

    version: int
    observed: np.ndarray  # (STEPS, GAMES, 4)
    actions: np.ndarray  # int64
    chances: np.ndarray  # logarithms of the chances with which they were chosen
    advantages: np.ndarray
    returns: np.ndarray
    scores: list[float]  # of games that ended


def end_with_learner() -> None:
    """Ends this process when the one that has started it has ended, however that was."""
    if learner := multiprocessing.parent_process():
        learner.join()
        os.kill(os.getpid(), SIGTERM)


def act(servers: Sequence[str], seed: int, rollouts: Queue[Rollout]) -> None:
    """An actor's whole program, which ends with the learner."""
    Thread(target=end_with_learner, daemon=True).start()
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    games = gymnasium.make_vec(
        "CartPole-v1",
        num_envs=GAMES,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    observed, scores = games.reset(seed=seed)[0], np.zeros(GAMES)
    with stratagem.Reader(servers) as reader:
        policy = reader.module(Policy)
        while True:
            # The lease is longer than a rollout, so that none is of two versions.
            with reader.pin(lease=60) as version, torch.no_grad():
                rollout, observed, scores = play(version, policy, games, observed, scores)
            rollouts.put(rollout)


def play(
    version: int, policy: nn.Module, games: VectorEnv, observed: np.ndarray, scores: np.ndarray
) -> tuple[Rollout, np.ndarray, np.ndarray]:
    """Takes STEPS steps of all games; returns what came of them, and where they are then."""
    seen, actions, chances, values, rewards, ended, finished = [], [], [], [], [], [], []
    for _ in range(STEPS):
        logits, value = policy(torch.from_numpy(observed))
        chosen = Categorical(logits=logits)
        action = chosen.sample()
        seen.append(observed)
        actions.append(action.numpy())
        chances.append(chosen.log_prob(action).numpy())
        values.append(value.numpy())
        observed, reward, fallen, cut, _ = games.step(action.numpy())
        over = fallen | cut
        scores = scores + reward
        finished += scores[over].tolist()
        scores = np.where(over, 0.0, scores)
        rewards.append(reward.astype(np.float32))
        ended.append(over.astype(np.float32))
    after = policy(torch.from_numpy(observed))[1].numpy()
    advantages = advantages_of(rewards, [*values, after], ended)
    returns = advantages + np.stack(values)
    arrays = (np.stack(seen), np.stack(actions), np.stack(chances), advantages, returns)
    return Rollout(version, *arrays, finished), observed, scores


def advantages_of(
    rewards: Sequence[np.ndarray], values: Sequence[np.ndarray], ended: Sequence[np.ndarray]
) -> np.ndarray:
    """How much better each action was than expected (Schulman et al., 2016, GAE)."""
    advantages, following = np.zeros((STEPS, GAMES), np.float32), np.zeros(GAMES, np.float32)
    for step in reversed(range(STEPS)):
        goes_on = 1 - ended[step]
        surprise = rewards[step] + DISCOUNT * values[step + 1] * goes_on - values[step]
        following = surprise + DISCOUNT * SMOOTHING * goes_on * following
        advantages[step] = following
    return advantages


def update(policy: Policy, optimizer: stratagem.DistributedOptimizer, *batch: Tensor) -> Tensor:
    """Takes one step of PPO in a replica; returns the loss."""
    observed, actions, chances, advantages, returns = batch
    logits, values = policy(observed)
    chosen = Categorical(logits=logits)
    ratio = (chosen.log_prob(actions) - chances).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    error = (values - returns).square().mean()
    loss: Tensor = 0.5 * error - gain - ENTROPY * chosen.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
    optimizer.step()
    return loss.detach()


def batches(rollout: Rollout) -> Iterator[list[Tensor]]:
    """The steps of a rollout in a random order, PASSES times, a quarter of them at a time."""
    arrays = [torch.from_numpy(each).flatten(0, 1) for each in rollout[1:6]]
    arrays[3] = (arrays[3] - arrays[3].mean()) / (arrays[3].std() + 1e-8)
    for _ in range(PASSES):
        for chosen in torch.randperm(STEPS * GAMES).chunk(4):
            yield [each[chosen] for each in arrays]


@contextmanager
def acting(servers: Sequence[str], actors: int) -> Iterator[Queue[Rollout]]:
    """Has actors play in processes of their own; yields what they collect."""
    processes = multiprocessing.get_context("spawn")
    rollouts: Queue[Rollout] = processes.Queue(maxsize=actors)
    started = [
        processes.Process(target=act, args=(servers, seed, rollouts), daemon=True)
        for seed in range(actors)
    ]
    for each in started:
        each.start()
    try:
        yield rollouts
    finally:
        for each in started:
            each.terminate()
            each.join()


def learn(resolver: ClusterResolver, folder: Path, updates: int, actors: int) -> np.ndarray:
    """The learner's whole program; returns the mean scores of each 50 games in a row."""
    torch.manual_seed(0)
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        policy = Policy()
    adam = torch.optim.Adam(policy.parameters(), RATE)
    step = partial(update, policy, stratagem.DistributedOptimizer(adam))
    strategy.publish()
    scores: list[float] = []
    refused = 0
    servers = [server for server in resolver.cluster_spec().job_tasks("ps") if server]
    with acting(servers, actors) as rollouts, tqdm(total=updates, unit="update") as progress:
        while progress.n < updates:
            rollout = rollouts.get(timeout=120)
            if strategy.versions_behind(rollout.version) > MOST_BEHIND:
                refused += 1
                continue
            for batch in batches(rollout):
                strategy.run(step, args=tuple(batch))
            strategy.publish()
            scores += rollout.scores
            progress.update()
            progress.set_postfix(score=f"{np.mean(scores[-50:]):.0f}", refused=refused)
    picture(scores, folder)
    return np.convolve(scores, np.ones(50) / 50, "valid")


def picture(scores: Sequence[float], folder: Path) -> None:
    """Draws the scores of all games in the order in which they came."""
    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(scores, ".", markersize=2, alpha=0.4)
    axes.plot(np.convolve(scores, np.ones(50) / 50, "valid"))
    axes.set(xlabel="game", ylabel="steps", title="CartPole-v1")
    figure.savefig(folder / "scores.png", dpi=150)


def main() -> None:
    """Runs the learner that TF_CONFIG describes."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("runs/cartpole"))
    options = parser.parse_args()
    resolver = TFConfigClusterResolver()
    means = learn(resolver, options.folder, options.updates, options.actors)
    print(f"cartpole: mean score {means[-1]:.1f}, at best {means.max():.1f}")


if __name__ == "__main__":
    main()

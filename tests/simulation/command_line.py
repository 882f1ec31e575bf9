"""Simulate many seeds, or replay one."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import monotonic

import torch

from tests.simulation.faults import FAULTS, REPLICA_FAULTS
from tests.simulation.shrinking import shrunk
from tests.simulation.simulation import Outcome, shape_of_seed, simulate
from tests.simulation.world import CALM_AT, Shelter

# Failing seeds that are told in full.
_MOST_TOLD = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate what the command line asks for; return the exit code."""
    options = _options(arguments)
    # The seeds are spread over the cores. Threads that torch makes later go by this number, too.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _simulated(options)
    finally:
        torch.set_num_threads(threads)


def _simulated(options: argparse.Namespace) -> int:
    if options.seed is not None:
        without = frozenset(filter(None, options.without.split(",")))
        return _replay(options.seed, Shelter(without, options.calm_at))
    began = monotonic()
    seeds = range(options.first, options.first + options.seeds)
    chosen = [seed for seed in seeds if options.only in str(shape_of_seed(seed))]
    failed = _judged(_outcomes(chosen, options.jobs), len(chosen))
    print(f"{len(chosen)} seeds from {options.first} in {monotonic() - began:.0f} s")
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many to simulate")
    parser.add_argument("--first", type=int, default=0, help="the first one of these")
    parser.add_argument("--seed", type=int, help="replay this one alone, and print its trace")
    parser.add_argument("--without", default="", help="faults to leave out of the replay")
    parser.add_argument("--calm-at", type=float, default=CALM_AT, help="when its faults cease")
    parser.add_argument("--only", default="", help='only runs like this, for instance "replicas"')
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes to use")
    return parser.parse_args(arguments)


def _replay(seed: int, shelter: Shelter) -> int:
    outcome = simulate(seed, shelter)
    _tell(outcome, shelter)
    print(_table(outcome.faults + outcome.effects, 1))
    return 1 if outcome.violations else 0


def _outcomes(seeds: Sequence[int], jobs: int) -> Iterator[Outcome]:
    # Imports take longer than many seeds, so they are done once for all processes.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (1,)) as pool:
        yield from pool.map(_briefly, seeds, chunksize=20)


def _briefly(seed: int) -> Outcome:
    """Simulate a seed; leave out its trace, which is told of the same seed with fewer faults."""
    return simulate(seed)._replace(trace=())


def _judged(outcomes: Iterable[Outcome], number: int) -> int:
    """Tell of failing seeds, and how often each fault has happened; return how many failed."""
    programs, failed = Counter[str](), 0
    # What never happens is in the table, too.
    faults = Counter(dict.fromkeys(sorted(FAULTS | REPLICA_FAULTS), 0))
    for outcome in outcomes:
        faults.update(outcome.faults + outcome.effects)
        programs[outcome.program] += 1
        if outcome.violations:
            failed += 1
            if failed <= _MOST_TOLD:
                shelter = shrunk(outcome.seed)
                _tell(simulate(outcome.seed, shelter), shelter)
    print(_table(programs, number))
    print(_table(faults, number))
    if failed:
        print(f"{failed} of {number} seeds failed", file=sys.stderr)
    return failed


def _tell(outcome: Outcome, shelter: Shelter) -> None:
    print(*outcome.trace, sep="\n")
    for violation in outcome.violations:
        print(f"seed {outcome.seed} ({outcome.program}): {violation}")
    if outcome.violations:
        print(f"replay: python -m tests.simulation --seed {outcome.seed}{shelter}")


def _table(counts: Counter[str], number: int) -> str:
    each = max(1, number)
    lines = [f"{what:<36} {n:>8}  {n / each:>8.2f} a seed" for what, n in counts.most_common()]
    return "\n".join(lines)

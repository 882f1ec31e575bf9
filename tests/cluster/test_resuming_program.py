"""`examples/resuming.py` under `stratagem run`: its processes are killed, each and all of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from examples import resuming
from tests.deploy.processes.process_tree import command, descendants, python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

EPOCHS, RATINGS = 6, 16_000


class Run:
    """The program's runs in a folder, one after the other.

    Args:
        folder: Where all of it is.
        options: Of the program.
        durable: Whether servers keep a log.
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), durable: bool = True) -> None:
        self._folder, self._log = folder, folder / "log"
        self._command = ["-m", "stratagem_deploy.cli", "run", "--ps", "2", "--workers", "2"]
        self._command += ["--max-restarts", "1000"]
        if durable:
            self._command += ["--durability", "log", "--durability-folder", str(folder / "servers")]
        self._command += [resuming.__file__, str(folder), "--epochs", str(EPOCHS)]
        self._command += ["--ratings", str(RATINGS), "--save-every", "2", *options]

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """Starts all, and has all end with the block."""
        impatience = {"STRATAGEM_RECONNECT_SECONDS": "0.5"}
        with (
            self._log.open("a") as log,
            python(*self._command, environment=impatience, output=log.fileno()) as run,
        ):
            try:
                yield run
            finally:
                kill_all(run)

    def to_its_end(self) -> str:
        """Starts all, and returns what worker 0 prints at the end."""
        with self.started() as run:
            assert run.wait(timeout=600) == 0, self._log.read_text()
        told: list[str] = re.findall(r"^error .* times$", self._log.read_text(), re.MULTILINE)
        return told[-1]

    @property
    def progress(self) -> str:
        """What tells that it has come further, or another process has begun."""
        latest = self._folder / "checkpoints" / "latest"
        return latest.read_text() if latest.exists() else ""


def kill_all(run: subprocess.Popen[str]) -> None:
    """Ends a run and all of its processes at once, by SIGKILL."""
    for pid in (run.pid, *descendants(run.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


def has_ended(run: subprocess.Popen[str]) -> bool:
    """Whether it has come to its end."""
    return run.poll() is not None


def members(run: subprocess.Popen[str], what: str) -> list[int]:
    """The processes of a run whose command line has something, those that forked others first."""
    return sorted(pid for pid in descendants(run.pid) if what in command(pid))


def strike(run: subprocess.Popen[str], victim: str, chance: random.Random) -> None:
    """Kills one of the processes of a kind; those of a loader are of the program, too."""
    found = members(run, "stratagem_psserver" if victim == "server" else resuming.__file__)
    if found:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)


def survive(run: Run, moments: int, seed: int) -> str:
    """Kills at so many random moments, and returns what is printed at the end."""
    chance = random.Random(seed)
    victims = ["program", "server", "program", "all"]
    while moments:
        with run.started() as process:
            while moments:
                moments -= 1
                before = run.progress
                # Whoever starts may be killed, too, but on a busy machine not every time.
                patience = chance.uniform(0.5, 15.0) if chance.random() < 0.4 else 120.0
                with suppress(AssertionError):
                    eventually(lambda: run.progress != before or has_ended(process), patience)  # noqa: B023
                time.sleep(chance.random() / 4)
                if has_ended(process):
                    break  # it has come to its end
                victim = victims[moments % len(victims)]
                if victim == "all":
                    break
                strike(process, victim, chance)
    return run.to_its_end()


def numbers(line: str) -> tuple[float, int, int, int]:
    """The error, the epochs, and how often a rating was used, of what is printed at the end."""
    found = re.fullmatch(r"error (\S+) after (\d+) epochs; .* used (\d+) to (\d+) times", line)
    assert found, line
    error, *counts = found.groups()
    epochs, fewest, most = map(int, counts)
    return float(error), epochs, fewest, most


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run prints in which nothing happens."""
    return Run(tmp_path_factory.mktemp("undisturbed")).to_its_end()


def test_it_ends_as_if_nothing_had_happened(tmp_path: Path, undisturbed: str) -> None:
    _, epochs, fewest, most = numbers(undisturbed)
    assert fewest == most == epochs
    run = Run(tmp_path)
    told = survive(run, 4, seed=1)
    assert told == undisturbed
    # All is over.
    assert run.to_its_end() == told
    shutil.rmtree(tmp_path / "servers")
    assert run.to_its_end() == told


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durable", [True, False])
def test_thirty_deaths_end_as_if_nothing_had_happened(
    tmp_path: Path, undisturbed: str, durable: bool
) -> None:
    # Without a log, the end of a server is that of the run.
    assert survive(Run(tmp_path, durable=durable), 30, seed=2) == undisturbed


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_without_steps_together_each_rating_is_used_once_an_epoch(
    tmp_path: Path, undisturbed: str
) -> None:
    told = survive(Run(tmp_path, ["--consistency", "async", "--patience", "100"]), 30, seed=3)
    error, epochs, fewest, most = numbers(told)
    assert fewest == most == epochs == EPOCHS
    assert abs(error - numbers(undisturbed)[0]) < 0.02

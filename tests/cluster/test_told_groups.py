"""Programs in a `Notice`, with workers of a loader, whose whole group is told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import is_alive, python
from tests.waiting import eventually

# Starting a process takes long on a busy machine.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PROGRAM = """
import json, multiprocessing, sys, time
from torch.utils.data import DataLoader
import stratagem

how = sys.argv[1]

class Numbers:
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return index

def wait():
    time.sleep(600)

def loader():
    start = "spawn" if how == "spawn" else "fork"
    return iter(DataLoader(Numbers(), num_workers=2, multiprocessing_context=start))

if __name__ == "__main__":
    finished, later = 0, 0
    batches = loader() if how == "before" else None
    with stratagem.Notice() as notice:
        batches = batches or loader()
        workers = [worker.pid for worker in batches._workers]
        print(json.dumps(workers), flush=True)
        for batch in notice.until(batches):
            if how == "die":
                time.sleep(600)
            if int(batch) == 3:
                print("ready", flush=True)
                while not notice.given:
                    time.sleep(0.01)
                time.sleep(1)
                if how == "fork":
                    later = int(next(batches))
            finished += 1
        if how == "fork":
            child = multiprocessing.get_context("fork").Process(target=wait)
            child.start()
            child.terminate()
            child.join()
    time.sleep(0.5)
    print(json.dumps([finished, notice.given, later]), flush=True)
"""


def started(folder: Path, how: str) -> AbstractContextManager[subprocess.Popen[str]]:
    script = folder / "script.py"
    script.write_text(PROGRAM)
    return python(str(script), how, output=subprocess.PIPE)


@pytest.mark.parametrize("how", ["fork", "before", "spawn"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_step_under_way_is_finished(tmp_path: Path, how: str, number: int) -> None:
    with started(tmp_path, how) as program:
        assert program.stdout
        workers = json.loads(program.stdout.readline())
        assert program.stdout.readline() == "ready\n"
        os.killpg(program.pid, number)
        output, errors = program.communicate(timeout=120)
    outcome = json.loads(output)
    assert outcome == [4, True, 4 if how == "fork" else 0], errors
    assert program.returncode == 0, errors
    eventually(lambda: not any(map(is_alive, workers)))


def test_workers_whose_program_is_killed_end_as_they_were_told(tmp_path: Path) -> None:
    with started(tmp_path, "die") as program:
        assert program.stdout
        workers = json.loads(program.stdout.readline())
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        program.kill()
        eventually(lambda: not any(map(is_alive, workers)))

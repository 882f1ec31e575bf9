"""The batch script, of which only `srun` is another."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem_deploy.processes.process import import_path

SCRIPT = Path(__file__).parents[3] / "deploy/slurm/train.sbatch"

PROGRAM = """
import os
import sys

import stratagem

# So that sets have one order in all workers.
assert os.environ["PYTHONHASHSEED"] == "0"
with stratagem.ParameterServerStrategy(consistency="sync") as strategy:
    with strategy.scope():
        counter = stratagem.Variable(0.0)
    strategy.barrier("created")
    counter.assign_add(1.0)
    strategy.barrier("counted")
    task, count = strategy.cluster_resolver.task_id, float(counter.numpy())
    # In one piece, as both workers write here.
    sys.stdout.write(f"{sys.argv[1]} {task} {count}\\n")
"""


def sbatch(
    folder: Path, *arguments: str, tasks: int | None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs the script in a folder as Slurm would, as a job of one node."""
    programs = [str(Path(__file__).parent), str(Path(sys.executable).parent)]
    job = {
        "SLURM_JOB_ID": str(random.randrange(20_000)),
        **({} if tasks is None else {"SLURM_NTASKS": str(tasks)}),
        "SLURM_CPUS_PER_TASK": "1",
        "PATH": os.pathsep.join([*programs, os.environ["PATH"]]),
        **import_path(),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONHASHSEED": "",
        **variables,
    }
    (folder / "tmp").mkdir()
    return subprocess.run(
        [SCRIPT, *arguments],
        cwd=folder,
        env=os.environ | job,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_trains_and_ends_with_its_workers(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    job = sbatch(tmp_path, "1", "count.py", "hello", tasks=3)
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == ["hello 0 2.0", "hello 1 2.0"]
    # Neither the secret nor what tasks had in their scratch folders is left.
    assert {path.name for path in tmp_path.iterdir()} == {"count.py", "tmp"}
    assert not [*(tmp_path / "tmp").glob("stratagem-*")]


@pytest.mark.parametrize("servers", ["0", "3"])
def test_a_job_without_servers_or_workers_is_refused(tmp_path: Path, servers: str) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    job = sbatch(tmp_path, servers, "count.py", tasks=3)
    assert job.returncode == 2
    assert "the job has 3 tasks; see sbatch --ntasks" in job.stderr


def test_a_job_that_does_not_say_how_many_tasks_it_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    job = sbatch(tmp_path, "1", "count.py", tasks=None)
    assert (job.returncode, "give sbatch --ntasks" in job.stderr) == (2, True)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    job = sbatch(tmp_path, "1", "cuont.py", tasks=3)
    assert (job.returncode, f"no file cuont.py in {tmp_path}" in job.stderr) == (2, True)


@pytest.mark.parametrize("port", ["abc", "0", "070", "64534", "70000", "123456"])
def test_what_is_no_port_is_refused_before_tasks_start(tmp_path: Path, port: str) -> None:
    (tmp_path / "count.py").write_text(PROGRAM)
    job = sbatch(tmp_path, "1", "count.py", tasks=3, PORT=port)
    assert job.returncode == 2
    assert (
        f"PORT is {port}; give the first port that tasks listen on, from 1 to 64533" in job.stderr
    )


def test_it_says_how_it_is_called(tmp_path: Path) -> None:
    job = sbatch(tmp_path, "train.py", tasks=3)
    assert job.returncode == 2
    assert job.stderr.startswith("usage: sbatch --ntasks=N train.sbatch SERVERS")

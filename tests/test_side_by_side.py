"""Programs of torch.distributed and of Stratagem that stand side by side do the same."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

import pytest
import torch

from stratagem.cluster_resolver import ClusterResolver
from stratagem_deploy import LocalCluster
from tests.pages import ROOT

pytestmark = pytest.mark.long

FOLDER = ROOT / "docs" / "how-to"
NAMES = ("from-ddp", "from-torch-rpc")
SHARED = "What the programs share"
ON_SERVERS = "stratagem run --ps 1 --workers 2 train.py"
LEFT = {
    "from-ddp": "torchrun --nproc-per-node 2 train.py",
    "from-torch-rpc": "torchrun --nproc-per-node 3 train.py",
}
RIGHT = {  # where it is not `ON_SERVERS`
    "The same all-reduce": LEFT["from-ddp"],
    "Functions on other processes": "stratagem run --ps 1 --workers 2 --coordinators 1 train.py",
}
MOST_SECONDS = 200
# Torch is loaded once for all processes.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch.distributed.rpc", "stratagem.coordinator"])


def sections(name: str) -> dict[str, list[str]]:
    """Return the two programs of each section of a page, left and right."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (.+?)\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.M)
    programs = {
        title: re.findall(r"```(?:py|python)\n(.*?)```", section, re.DOTALL)
        for title, section in found
    }
    return {title: blocks for title, blocks in programs.items() if blocks}


SECTIONS = [(name, title) for name in NAMES for title in sections(name) if title != SHARED]


@pytest.mark.parametrize(("name", "title"), SECTIONS)
def test_both_programs_do_the_same(name: str, title: str, tmp_path: Path) -> None:
    shared, programs = sections(name)[SHARED], sections(name)[title]
    commands = (LEFT[name], RIGHT.get(title, ON_SERVERS))
    left, right = (
        saved(command, start + program, tmp_path / str(side))
        for side, (command, start, program) in enumerate(
            zip(commands, shared, programs, strict=True)
        )
    )
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_tells_the_commands(name: str) -> None:
    page = " ".join((FOLDER / f"{name}.md").read_text(encoding="utf-8").split())
    used = {RIGHT.get(title, ON_SERVERS) for title in sections(name)} | {LEFT[name]}
    assert {command for command in used if f"`{command}`" not in page} == set()


def saved(command: str, program: str, folder: Path) -> object:
    """Run a program as a command would; return what it has saved, or nothing if it saves nothing.

    Each block of a page that saves nothing checks by itself what it has trained.
    """
    folder.mkdir()
    with environments(command, folder) as each:
        processes = [PROCESSES.Process(target=run, args=(program, one, folder)) for one in each]
        for process in processes:
            process.start()
        for process in processes:
            process.join(MOST_SECONDS)
        assert [process.exitcode for process in processes] == [0] * len(processes)
    path = folder / "model.pt"
    assert path.exists() == ("torch.save" in program)
    return torch.load(path) if path.exists() else ()


def run(program: str, environment: dict[str, str], folder: Path) -> None:
    """Run a program as the main module of this process."""
    os.environ.update(environment)
    os.chdir(folder)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.modules["__main__"] = main = ModuleType("__main__")
    exec(compile(program, "train.py", "exec"), vars(main))


@contextmanager
def environments(command: str, folder: Path) -> Iterator[list[dict[str, str]]]:
    """Yield those of the processes that a command starts; their servers run in this process."""
    if command.startswith("torchrun"):
        yield ranks(int(command.split()[2]))
    elif "--coordinators" in command:
        with LocalCluster(ps=1, worker_servers=2) as cluster:
            yield [task(cluster.cluster_resolver, folder)]
    else:
        with LocalCluster(ps=1, workers=2) as cluster:
            yield [task(cluster.resolver("worker", index), folder) for index in range(2)]


def ranks(number: int) -> list[dict[str, str]]:
    """Return the environments that torchrun gives processes of one machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return [
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
        }
        for rank in range(number)
    ]


def task(resolver: ClusterResolver, folder: Path) -> dict[str, str]:
    """Return the environment of a task of a cluster."""
    token = folder / "token"
    token.write_text(resolver.cluster_token or "")
    token.chmod(0o600)
    told = {
        "cluster": resolver.cluster_spec().as_dict(),
        "task": {"type": resolver.task_type, "index": resolver.task_id},
    }
    return {"TF_CONFIG": json.dumps(told), "STRATAGEM_TOKEN_FILE": str(token)}

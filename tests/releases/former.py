"""Processes of the last release, of which the files of its wheel are kept here, and of this one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stratagem_deploy.clusters.servers import replica_standings
from stratagem_deploy.processes.process import import_path
from stratagem_deploy.processes.resources import ReservedAddresses
from stratagem_proto.v1.replication_pb2 import STANDING_PRIMARY
from tests.conftest import TOKEN
from tests.waiting import eventually

FORMER = "0.1.0a1"
"""The release that came before the present one."""

PATIENCE = 300.0

# `python -m tests.releases.keep WHEEL` makes it.
_FILES = Path(__file__).with_name(f"stratagem-{FORMER}.tar.xz")


def unpacked(folder: Path) -> Path:
    """The packages of the last release, in a folder that goes to the front of an import path."""
    with tarfile.open(_FILES) as files:
        files.extractall(folder, filter="data")
    return folder


class Releases:
    """The import paths of both releases, by the words "former" and "present"."""

    def __init__(self, folder: Path) -> None:
        ours = import_path()
        former = {"PYTHONPATH": os.pathsep.join([str(unpacked(folder)), *ours.values()])}
        self._paths: Mapping[str, Mapping[str, str]] = {"former": former, "present": ours}

    def let_former_speak(self, oldest: int, latest: int) -> None:
        """Have the files of the last release speak other versions of the contract."""
        (folder, *_) = self._paths["former"]["PYTHONPATH"].split(os.pathsep)
        file = Path(folder, "stratagem_proto", "protocol.py")
        text, count = re.subn(
            r"^PROTOCOL_VERSION = \d+\nOLDEST_PROTOCOL_VERSION = \d+$",
            f"PROTOCOL_VERSION = {latest}\nOLDEST_PROTOCOL_VERSION = {oldest}",
            file.read_text(),
            flags=re.MULTILINE,
        )
        assert count == 1
        file.write_text(text)

    def start(
        self, release: str, arguments: Sequence[str], output: Path, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start Python with a release, which writes to a file."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | dict(self._paths[release]) | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


class Rolling:
    """A cluster whose processes are replaced by those of another release, one after the other.

    Args:
        folder: Where all of it is.
        script: What its workers run: until there is a file "end-" with their name.
        addresses: Where its servers are.
        options: More options of each server.
        has_backup: Whether both servers are replicas of one task.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        addresses: ReservedAddresses,
        options: Sequence[str],
        has_backup: bool = False,
    ) -> None:
        self._has_backup = has_backup
        self._folder, self._options = folder, options
        self.addresses = addresses.replicas
        self.releases = Releases(folder / "former")
        self._script, self.token_file = folder / "train.py", folder / "token"
        self._script.write_text(script)
        self.token_file.write_text(TOKEN)
        self.token_file.chmod(0o600)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0

    @property
    def cluster(self) -> Mapping[str, Sequence[str]]:
        servers = [",".join(self.addresses)] if self._has_backup else self.addresses
        return {"ps": servers, "worker": ["w:0", "w:0"]}

    def await_backup(self) -> None:
        """Wait until one server serves and the other one is its backup."""

        def has_backup() -> bool:
            said = replica_standings(self.addresses, TOKEN, 5.0)
            return any(
                one and one.standing == STANDING_PRIMARY and one.view.HasField("backup")
                for one in said
            )

        eventually(has_backup, PATIENCE)

    def start_server(self, task: int, release: str) -> None:
        """Start a server, and wait until it serves."""
        ready = self._folder / f"ready-{task}"
        ready.unlink(missing_ok=True)
        which: tuple[str, ...] = ("--task", str(task))
        if self._has_backup:
            which = ("--task", "0", "--replicas", "2", "--replica", str(task))
        arguments = [
            *("-m", "stratagem_psserver", "--bind", self.addresses[task], *which),
            *("--token-file", str(self.token_file), "--ready-file", str(ready), *self._options),
        ]
        output = self._folder / f"ps-{task}.out"
        process = self._processes[f"ps-{task}"] = self.releases.start(release, arguments, output)
        eventually(lambda: ready.exists() or process.poll() is not None, PATIENCE)
        assert process.poll() is None, output.read_text()

    def stop_server(self, task: int) -> None:
        process = self._processes[f"ps-{task}"]
        process.terminate()
        process.wait(PATIENCE)

    def start_worker(self, index: int, release: str) -> None:
        """Start a worker, and wait until it trains."""
        name, self._count = f"worker-{index}", self._count + 1
        place = {"cluster": self.cluster, "task": {"type": "worker", "index": index}}
        output = self._folder / f"{name}.out"
        process = self._processes[name] = self.releases.start(
            release,
            [str(self._script), str(self._count)],
            output,
            TF_CONFIG=json.dumps(place),
            STRATAGEM_TOKEN_FILE=str(self.token_file),
        )
        eventually(lambda: self._counted(self._count) > 3 or process.poll() is not None, PATIENCE)
        assert process.poll() is None, output.read_text()

    def stop_worker(self, index: int) -> str:
        """Let a worker come to its end; return what it has written."""
        process, end = self._processes[f"worker-{index}"], self._folder / f"end-{index}"
        end.touch()
        process.wait(PATIENCE)
        end.unlink()
        output = (self._folder / f"worker-{index}.out").read_text()
        assert process.returncode == 0, output
        return output

    def await_more(self) -> None:
        """Wait until the workers have gone on."""
        before = self.counted()
        eventually(lambda: self.counted() > before + 10, PATIENCE)

    def counted(self) -> int:
        """How many steps all workers say that they have taken."""
        return sum(map(self._counted, range(1, self._count + 1)))

    def _counted(self, number: int) -> int:
        file = self._folder / f"counted-{number}"
        return int(file.read_text() or 0) if file.exists() else 0

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextmanager
def rolling(
    folder: Path, script: str, *options: str, has_backup: bool = False
) -> Iterator[Rolling]:
    """A cluster of two servers, of which none has started yet."""
    with ReservedAddresses(2) as addresses:
        cluster = Rolling(folder, script, addresses, options, has_backup)
        try:
            yield cluster
        finally:
            cluster.end()

"""`stratagem run`: real servers and scripts, seen from a shell."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.deploy.processes.process_tree import command, fork_servers, python, tasks
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

HEAD = """
import json, os, signal, sys, time
from pathlib import Path
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
folder = Path(__file__).parent
"""
DESCRIBE = """
description = {
    "config": json.loads(os.environ["TF_CONFIG"]),
    "token": Path(os.environ["STRATAGEM_TOKEN_FILE"]).read_text(),
    "mode": oct(os.stat(os.environ["STRATAGEM_TOKEN_FILE"]).st_mode),
    "arguments": sys.argv[1:],
    "set": list({str(number) for number in range(100)}),
}
(folder / f"{task}.json").write_text(json.dumps(description))
"""
SPEAK = """
if task == 0:
    sys.stderr.write("\\r 50%\\r100%\\n")
    Path(folder / "chief").touch()
    while not (folder / "other").exists(): time.sleep(0.01)
    print("demo: result 1")
else:
    while not (folder / "chief").exists(): time.sleep(0.01)
    sys.stderr.write("\\r 50%\\r100%\\n")
    print("from", task, flush=True)
    Path(folder / "other").touch()
"""
SPEAK_AND_FAIL = """
print("started")
if task == 1:
    print("this went wrong", file=sys.stderr)
    sys.exit(7)
time.sleep(1000)
"""
FAIL = """
if task == 1:
    print("this went wrong", file=sys.stderr)
    sys.exit(7)
time.sleep(1000)
"""
COUNT = """
import stratagem
strategy = stratagem.ParameterServerStrategy(stratagem.cluster_resolver.TFConfigClusterResolver())
with strategy.scope():
    count = stratagem.Variable(0.0)
count.assign_add(1.0)
Path(folder / "counted").touch()
while not (folder / "killed").exists(): time.sleep(0.01)
count.assign_add(1.0)
print(int(count.numpy()))
"""
LISTEN = """
def note(signum, frame):
    with open(folder / f"signals-{task}", "a") as file:
        file.write(f"{signum} ")
    if task == 0:
        sys.exit(5)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, note)
Path(folder / f"ready-{task}").touch()
while True: time.sleep(0.01)
"""
STUBBORN = """
signal.signal(signal.SIGINT, lambda *_: Path(folder / "interrupted").touch())
Path(folder / f"ready-{task}").touch()
while True: time.sleep(0.01)
"""

TOGETHER = """
import torch
from stratagem import MultiWorkerMirroredStrategy
strategy = MultiWorkerMirroredStrategy()
print(strategy.reduce("sum", torch.tensor(task + 1.0), axis=None).item())
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script that knows its task and the folder it is in."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(HEAD + body)
        return path

    return write


def start(
    script: Path, *options: str, output: int = subprocess.PIPE, **environment: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    command = ["-m", "stratagem_deploy.cli", "run", *options, str(script)]
    return python(*command, environment=environment, output=output)


def finished(script: Path, *options: str) -> tuple[int, list[str], list[str]]:
    """Runs to the end; returns the exit code and the lines of both outputs."""
    with start(script, *options) as run:
        output, errors = run.communicate()
    return run.returncode, output.splitlines(), errors.splitlines()


@pytest.mark.long
def test_workers_may_train_without_servers(script: Callable[[str], Path]) -> None:
    path = script(TOGETHER)
    code, chief, others = finished(path, "--ps", "0", "--workers", "2")
    assert (code, chief) == (0, ["3.0"])
    # Whoever waits for the other says so after some seconds.
    assert [line for line in others if "waits for" not in line] == ["worker:1 | 3.0"]


def test_every_worker_finds_its_cluster_in_its_environment(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    path = script(DESCRIBE)
    with python(
        *("-m", "stratagem_deploy.cli", "run", "--ps", "2", "--workers", "2"),
        *(str(path), "--", "--ps", "9", "-x", "name"),
        output=subprocess.DEVNULL,
    ) as run:
        assert run.wait() == 0
    views = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2)]
    for index, view in enumerate(views):
        assert view["config"]["task"] == {"type": "worker", "index": index}
        assert {job: len(tasks) for job, tasks in view["config"]["cluster"].items()} == {
            "ps": 2,
            "worker": 2,
        }
        assert view["arguments"] == ["--ps", "9", "-x", "name"]
        assert view["mode"].endswith("600")
    assert views[0]["config"]["cluster"] == views[1]["config"]["cluster"]
    assert len(views[0]["token"]) >= 32
    assert views[0]["token"] == views[1]["token"]
    assert views[0]["set"] == views[1]["set"]


def test_servers_read_their_table_of_the_file_of_the_run(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[run]\nps = 2\n[ps]\nvariable_byte = 8\n")
    code, _, errors = finished(script("Path(folder / 'ran').touch()"), "--config", str(file))
    problem = f"{file}: ps.variable_byte is not a setting; did you mean variable_bytes?"
    assert (code, any(problem in line for line in errors)) == (1, True)
    assert not (tmp_path / "ran").exists()


def test_the_output_is_the_chiefs_and_what_others_say_is_labelled(
    script: Callable[[str], Path],
) -> None:
    code, output, errors = finished(script(SPEAK), "--workers", "2")
    assert code == 0
    assert output == ["demo: result 1"]
    assert "worker:1 | from 1" in errors
    assert "worker:1 | 100%" in errors
    assert not any("\x1b" in line or "serving" in line for line in errors)


def test_the_first_failure_is_named_with_the_end_of_its_log(
    script: Callable[[str], Path],
) -> None:
    code, output, errors = finished(script(FAIL), "--workers", "3")
    assert (code, output) == (7, [])
    assert errors[-2:] == [
        "stratagem: worker:1 failed first, with exit code 7; the end of its log:",
        "worker:1 | this went wrong",
    ]


def test_all_that_is_said_is_lines_of_json_if_asked(
    script: Callable[[str], Path],
) -> None:
    options = ("--json", "--workers", "2", "--max-restarts", "1")
    code, output, errors = finished(script(SPEAK_AND_FAIL), *options)
    objects = [json.loads(line) for line in output]
    page = (Path(__file__).parents[2] / "docs" / "command.md").read_text()
    shown = [json.loads(line) for line in re.findall(r"^{.*}$", page, re.MULTILINE)]
    assert set(map(tuple, shown)) == set(map(tuple, objects))
    start, *lines, end = objects
    assert (code, errors) == (7, [])
    assert [len(tasks) for tasks in start["cluster"].values()] == [1, 2]
    assert {"task": "worker:1", "stream": "stdout", "line": "started"} in lines
    wrong = {"task": "worker:1", "stream": "stderr", "line": "this went wrong"}
    assert wrong in lines
    assert end.pop("seconds") > 0
    assert end == {"exit_code": 7, "failed": "worker:1", "problem": ""}


def test_a_server_with_a_log_that_dies_is_started_again(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    options = "--durability", "log", "--durability-folder", str(tmp_path / "state")
    with start(script(COUNT), *options, "--max-restarts", "1") as run:
        eventually((tmp_path / "counted").exists)
        (server,) = (pid for pid in tasks(run.pid) if "psserver" in command(pid))
        os.kill(server, signal.SIGKILL)
        (tmp_path / "killed").touch()
        output, errors = run.communicate()
    assert (run.returncode, output) == (0, "2\n")
    assert "ps:0 failed, with signal SIGKILL, and is started again: restart 1 of 1" in errors


def test_a_server_that_dies_ends_the_run(script: Callable[[str], Path], tmp_path: Path) -> None:
    with start(script(STUBBORN)) as run:
        eventually((tmp_path / "ready-0").exists)
        (server,) = (pid for pid in tasks(run.pid) if "psserver" in command(pid))
        os.kill(server, signal.SIGKILL)
        _, errors = run.communicate()
    assert run.returncode == 1
    assert "ps:0 failed first, with signal SIGKILL" in errors


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_an_interruption_reaches_every_worker_once(
    script: Callable[[str], Path], tmp_path: Path, how: str
) -> None:
    with start(script(LISTEN), "--workers", "2", "--grace", "60") as run:
        eventually(lambda: all((tmp_path / f"ready-{i}").exists() for i in range(2)))
        if how == "Ctrl-C":  # a terminal signals the whole process group
            os.killpg(run.pid, signal.SIGINT)
        else:
            os.kill(run.pid, signal.SIGTERM)
        _, errors = run.communicate()
    signum = signal.SIGTERM if how == "SIGTERM" else signal.SIGINT
    assert run.returncode in (5, 128 + signum)  # whichever worker ended first
    for index in range(2):
        assert (tmp_path / f"signals-{index}").read_text() == f"{signum} "
    assert "failed first" not in errors


@pytest.mark.parametrize("impatience", ["second Ctrl-C", "grace"])
def test_a_worker_that_ignores_the_interruption_is_killed(
    script: Callable[[str], Path], tmp_path: Path, impatience: str
) -> None:
    grace = "0.1" if impatience == "grace" else "1000"
    with start(script(STUBBORN), "--grace", grace) as run:
        eventually((tmp_path / "ready-0").exists)
        os.kill(run.pid, signal.SIGINT)
        if impatience == "second Ctrl-C":
            eventually((tmp_path / "interrupted").exists)
            os.kill(run.pid, signal.SIGINT)
        run.communicate()
    assert run.returncode == 128 + signal.SIGINT


def test_a_signal_that_wakes_nobody_is_noticed(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    with start(script(STUBBORN), "--grace", "0.1") as run:
        eventually((tmp_path / "ready-0").exists)
        threads = {int(each.name) for each in Path(f"/proc/{run.pid}/task").iterdir()}
        # Python acts on signals in its main thread, which one for another thread does not wake.
        ctypes.CDLL(None).tgkill(run.pid, max(threads - {run.pid}), signal.SIGINT)
        run.communicate()
    assert run.returncode == 128 + signal.SIGINT


def test_an_interruption_before_the_script_starts_ends_the_run(
    script: Callable[[str], Path], tmp_path: Path
) -> None:
    with start(script(STUBBORN)) as run:
        eventually(lambda: bool(fork_servers(run.pid)))
        # It needs seconds until it can fork a server, and gets none.
        for each in fork_servers(run.pid):
            os.kill(each, signal.SIGSTOP)
        os.kill(run.pid, signal.SIGINT)
        output, errors = run.communicate()
    assert (run.returncode, output) == (128 + signal.SIGINT, "")
    assert "Traceback" not in errors
    assert not (tmp_path / "ready-0").exists()


def test_an_interruption_while_a_server_starts_ends_the_run(script: Callable[[str], Path]) -> None:
    with start(script(STUBBORN), "--grace", "0.1") as run:
        eventually(lambda: any("psserver" in command(pid) for pid in tasks(run.pid)))
        os.kill(run.pid, signal.SIGINT)
        run.communicate()
    # A worker may have been started, and Python ends with 1 if it was about to find its own files.
    assert run.returncode in (1, 128 + signal.SIGINT)


def test_on_a_terminal_the_chief_sees_it_and_labels_have_colours(
    script: Callable[[str], Path],
) -> None:
    terminal, end = pty.openpty()
    path = script("print(task, sys.stderr.isatty() and sys.stdout.isatty())")
    options = ("--workers", "2", "--verbose")
    with start(path, *options, output=end, TERM="xterm-256color") as run:
        os.close(end)
        seen = everything_from(terminal)
        assert run.wait() == 0
    # The chief's line may be open when another one comes, and is then written again.
    lines = [line.rpartition("\r\x1b[K")[2] for line in seen.split("\r\n")]
    assert "0 True" in lines
    assert "\x1b[32mworker:1 | \x1b[0m1 False" in lines
    assert any("ps:0 | " in line and "serving" in line for line in lines)
    (watch,) = (line for line in lines if "to watch the servers" in line)
    assert " stratagem top 127.0.0.1:" in watch


def test_the_chiefs_terminal_takes_the_size_of_the_real_one(
    script: Callable[[str], Path],
) -> None:
    terminal, end = pty.openpty()
    path = script(
        "import signal, time\n"
        "resized = []\n"
        "signal.signal(signal.SIGWINCH, lambda *_: resized.append(True))\n"
        "print('started')\n"
        "while not resized: time.sleep(0.01)\n"
        "print('columns', os.get_terminal_size().columns)"
    )
    with start(path, output=end) as run:
        seen = b""
        while b"started" not in seen:
            seen += os.read(terminal, 4096)
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 132, 0, 0))
        os.close(end)
        os.kill(run.pid, signal.SIGWINCH)
        assert "columns 132" in everything_from(terminal)
        assert run.wait() == 0


def everything_from(descriptor: int) -> str:
    """Reads a terminal until nobody writes to it any more."""
    seen = b""
    try:
        while data := os.read(descriptor, 4096):
            seen += data
    except OSError:  # how a pseudo-terminal says that its other end is closed
        pass
    os.close(descriptor)
    return seen.decode()

"""Workers that end, or leave in order, while others are in an operation with them."""

from __future__ import annotations

import fcntl
import gc
import signal
import subprocess
import termios
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial

import psutil
import pytest
import torch
from torch._C._distributed_c10d import Store

from stratagem._multi_worker.links import Lifelines, Links
from stratagem._multi_worker.meeting import WorkerPlace
from stratagem_deploy.processes.resources import ReservedAddress
from stratagem_proto.errors import UnavailableError
from tests.deploy.processes.process_tree import python
from tests.interrupts import interrupt, interruptible
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SECONDS = 100.0

# More than the kernel takes of what the other one does not read.
BYTES = 1 << 27


def place(rank: int, size: int, address: str) -> WorkerPlace:
    names = ("first", "second", "third", "fourth")[:size]
    return WorkerPlace(names, rank, address, rank == 0)


def started(
    program: str, address: ReservedAddress, *arguments: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    return python("-c", program, str(address), *arguments, output=subprocess.PIPE)


# It is stopped once it is ready for the tensor, of which it reads nothing.
RECEIVER = """
import os, signal, sys, threading, torch
from tests.cluster.test_lifelines import BYTES, SECONDS, place
from tests.waiting import eventually
from stratagem._multi_worker.links import Links
links = Links(place(1, 2, sys.argv[1]), SECONDS)
content = torch.zeros(BYTES, dtype=torch.uint8)
threading.Thread(target=links.spread, args=([content],), daemon=True).start()
eventually(lambda: links._meeting.store.check(["waits/1"]))
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_worker_that_ends_while_much_is_sent_to_it_is_named() -> None:
    with ReservedAddress() as address, started(RECEIVER, address) as receiver:
        links = Links(place(0, 2, str(address)), SECONDS)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        content = torch.zeros(BYTES, dtype=torch.uint8)
        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(links.spread, [content])
            eventually(lambda: links._meeting.store.check(["waits/0"]))
            receiver.kill()
            message = r"first could not finish .* missing: second \(.*losed by peer"
            with pytest.raises(UnavailableError, match=message):
                sending.result()


def test_a_worker_that_leaves_in_order_does_not_disturb_the_others() -> None:
    value, nothing = torch.ones(3), torch.zeros(3)
    with ReservedAddress() as address, ThreadPoolExecutor(4) as threads:
        connect = [partial(Links, place(rank, 4, str(address)), SECONDS) for rank in range(4)]
        links = [each.result() for each in list(map(threads.submit, connect))]
        # gloo lets the second one send to the fourth what the first sends to the second.
        parts = [threads.submit(links[rank].spread, [nothing]) for rank in (1, 2)]
        threads.submit(links[0].spread, [value]).result()
        links[0] = links[1]  # the first one ends
        eventually(lambda: has_looked(links[1]._lifelines))
        parts.append(threads.submit(links[3].spread, [nothing]))
        for part in parts:
            assert torch.equal(part.result()[0], value)


def has_looked(lifelines: Lifelines) -> bool:
    return lifelines._next_look > 1.0


# The other one comes to the first operation only.
INTERRUPTED = """
import signal, sys, torch
from tests.cluster.test_lifelines import place
from stratagem._multi_worker.group import WorkerGroup
# Children of pytest-xdist's processes ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
rank = int(sys.argv[2])
group = WorkerGroup(place(rank, 2, sys.argv[1]), 3600.0, [])
group.agree("The start", [])
if rank == 0:
    signal.pause()
group.agree("What only one does", [])
"""


def test_a_worker_that_is_interrupted_while_it_waits_ends() -> None:
    with (
        ReservedAddress() as address,
        started(INTERRUPTED, address, "0"),
        started(INTERRUPTED, address, "1") as waiting,
    ):
        assert waiting.stderr is not None
        assert "waits for first to take part" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=SECONDS)
        assert errors.endswith("KeyboardInterrupt\n")


def interrupt_once_it_waits(store: Store) -> None:
    eventually(lambda: store.check(["waits/0"]))
    interrupt()


def unread() -> int:
    """The bytes that have come to this process's sockets, and that it has not read."""
    connections = psutil.Process().net_connections()
    fds = [each.fd for each in connections if each.status != psutil.CONN_LISTEN]
    counts = [array("i", [0]) for _ in fds]
    for fd, count in zip(fds, counts, strict=True):
        fcntl.ioctl(fd, termios.FIONREAD, count)
    return sum(count[0] for count in counts)


def test_an_interrupted_worker_still_takes_the_farewells_of_others() -> None:
    """Else gloo looks at them without a pause, and has a core busy until the program ends."""
    with ReservedAddress() as address, ThreadPoolExecutor(1) as threads:
        other = threads.submit(Links, place(1, 2, str(address)), SECONDS)
        links = [Links(place(0, 2, str(address)), SECONDS), other.result()]
        del other
        with interruptible(), pytest.raises(KeyboardInterrupt):
            threads.submit(interrupt_once_it_waits, links[0]._meeting.store)
            links[0].joined(torch.zeros(1), [1, 1])
        for _ in range(2):
            del links[0]
            # What was interrupted is still known to the traceback.
            gc.collect()
        eventually(lambda: not unread())

"""A switch that holds frames up, since not each kernel can."""

from __future__ import annotations

import fcntl
import heapq
import os
import resource
import select
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection

from benchmarks.scaling.worker import enter, forking

_TUNSETIFF, _TUNSETOFFLOAD, _SIOCSIFHWADDR = 0x400454CA, 0x400454D0, 0x8924
_TAP, _NO_INFORMATION, _WITH_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUMS_AND_SEGMENTS = 0x1 | 0x2
_HEADER_BYTES, _ADDRESS_BYTES, _MOST_BYTES = 10, 6, 1 << 17
_QUEUE_SECONDS = 0.1


def _plugged(network: str, number: int) -> tuple[int, bytes]:
    """Make the device eth0 of a host; return its other end, and the address of its card."""
    enter(network)
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _TAP | _NO_INFORMATION | _WITH_HEADER
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", b"eth0", flags))
    # Segments of up to 64 KiB pass as they are; else each frame would cost as much.
    fcntl.ioctl(end, _TUNSETOFFLOAD, _CHECKSUMS_AND_SEGMENTS)
    address = bytes((2, 0, 0, 0, 0, number))
    fcntl.ioctl(end, _SIOCSIFHWADDR, struct.pack("16sH6s16x", b"eth0", 1, address))
    return end, address


class DelayedSwitch:
    """A process that passes frames between hosts, each some time after it was sent.

    Args:
        networks: Of the hosts, as files of /proc.
        delay: Seconds from one host to another.
        rate: Bytes a second that a host can be sent.
    """

    def __init__(self, networks: Sequence[str], delay: float, rate: float) -> None:
        context = forking()
        mine, theirs = context.Pipe()
        arguments = theirs, networks, delay, rate
        self._process = context.Process(target=_switch, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._connection = mine
        assert mine.recv() == "plugged"

    def close(self) -> float:
        """Take it away; return how many seconds of processors it has used."""
        self._connection.send("end")
        used: float = self._connection.recv()
        self._process.join()
        return used


def _switch(parent: Connection, networks: Sequence[str], delay: float, rate: float) -> None:
    plugged = [_plugged(network, number) for number, network in enumerate(networks)]
    ends = {address: end for end, address in plugged}
    parent.send("plugged")
    free = dict.fromkeys(ends.values(), 0.0)
    held: list[tuple[float, int, int, bytes]] = []
    numbers, poller = count(), select.epoll()
    for end in (*ends.values(), parent.fileno()):
        poller.register(end, select.EPOLLIN)
    while True:
        left = max(0.0, held[0][0] - time.monotonic()) if held else -1
        for descriptor, _ in poller.poll(left):
            if descriptor == parent.fileno():
                used = resource.getrusage(resource.RUSAGE_SELF)
                parent.send(used.ru_utime + used.ru_stime)
                return
            frame, now = os.read(descriptor, _MOST_BYTES), time.monotonic()
            for receiver in _receivers(frame, descriptor, ends):
                begin = max(now + delay, free[receiver])
                if begin < now + delay + _QUEUE_SECONDS:
                    free[receiver] = begin + len(frame) / rate
                    heapq.heappush(held, (free[receiver], next(numbers), receiver, frame))
        while held and held[0][0] <= time.monotonic():
            _, _, receiver, frame = heapq.heappop(held)
            with suppress(OSError):  # the device is down
                os.write(receiver, frame)


def _receivers(frame: bytes, sender: int, ends: Mapping[bytes, int]) -> list[int]:
    address = frame[_HEADER_BYTES : _HEADER_BYTES + _ADDRESS_BYTES]
    if address in ends:
        return [ends[address]]
    return [end for end in ends.values() if end != sender]

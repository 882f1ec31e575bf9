"""The short forms in which Slurm lists hosts and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stratagem_proto.errors import InvalidArgumentError

# A host without brackets, or with one pair of them at its end.
_HOSTS = re.compile(r"(?P<prefix>[^,\[\]]*)(?:\[(?P<ranges>[^\[\]]+)\])?(?:,|$)")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_TASKS = re.compile(r"(?P<tasks>\d+)(?:\(x(?P<times>\d+)\))?")


def expand_hostlist(hostlist: str) -> list[str]:
    """Return the hosts of a list such as "n[1-2,04],m3", in its order.

    Numbers are as wide as the first of their range. Spec: RES-18.

    Raises:
        InvalidArgumentError: The list cannot be read.
    """
    hosts: list[str] = []
    position = 0
    while position < len(hostlist):
        part = _HOSTS.match(hostlist, position)
        if part is None or not part.group().strip(","):
            raise _unreadable("hostlist", hostlist)
        hosts += _hosts(part["prefix"], part["ranges"], hostlist)
        position = part.end()
    return hosts


def _hosts(prefix: str, ranges: str | None, hostlist: str) -> Iterator[str]:
    if ranges is None:
        yield prefix
        return
    for part in ranges.split(","):
        numbers = _RANGE.fullmatch(part)
        if numbers is None:
            raise _unreadable("hostlist", hostlist)
        first, last = numbers["first"], numbers["last"] or numbers["first"]
        for number in range(int(first), int(last) + 1):
            yield f"{prefix}{number:0{len(first)}}"


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Return the numbers of tasks of a list such as "3(x2),1": 3, 3 and 1.

    Spec: RES-18.

    Raises:
        InvalidArgumentError: The list cannot be read.
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        tasks = _TASKS.fullmatch(part)
        if tasks is None:
            raise _unreadable("tasks-per-node list", tasks_per_node)
        counts += [int(tasks["tasks"])] * int(tasks["times"] or 1)
    return counts


def _unreadable(what: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Invalid {what} format {text!r}; Slurm writes for instance 'n[1-2,4],m3' and '3(x2),4'"
    )

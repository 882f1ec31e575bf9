"""Which server hosts which variable, and where each one is, for people to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from stratagem._core.device_names import DeviceName
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import decode_dtype, nbytes_of

_SMALL_BYTES = 64 << 20
"""By so many bytes servers may differ for the sake of an even number of lookups."""


@dataclass(frozen=True)
class Place:
    """Where a variable goes.

    Attributes:
        server: Index of its server in the ps job.
        ordinal: Its place in the order of creation, from 0.
    """

    server: int
    ordinal: int


@dataclass(frozen=True)
class Demand:
    """What a variable needs of its server.

    Attributes:
        nbytes: Its size.
        server: Where it has to go; None to have a server chosen.
        grows: Whether its server stores only those rows of it that are written, so that nobody
            knows how many of the bytes it will come to take.
        lookups: How many lookups a step are expected: one of each table, of which a part has its
            share; none of what is read and written as a whole.
    """

    nbytes: int
    server: int | None = None
    grows: bool = False
    lookups: Fraction = Fraction(0)


class Placement(ABC):
    """Gives variables their places in the order of their creation.

    All workers create in the same order and so come to the same places. What is looked up goes to
    the server of which the fewest lookups are expected, whatever its size: a step looks up about as
    many rows of a table of a thousand as of one of a million.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._created = 0
        self._lookups = dict.fromkeys(servers, Fraction(0))

    def next(self, demand: Demand) -> Place:
        """Return the place of the next variable."""
        ordinal = self._created
        self._created += 1
        server = self._server_for(demand)
        self._lookups[server] += demand.lookups
        return Place(server, ordinal)

    @abstractmethod
    def _server_for(self, demand: Demand) -> int:
        """Choose a server, unless the demand says which."""


class RoundRobin(Placement):
    """Deals variables to the servers in turn. Spec: PS1-5, PSV-1.

    It is a turn of theirs for tables, too, though these go by their lookups.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        super().__init__(servers)
        self._dealt = 0

    def _server_for(self, demand: Demand) -> int:
        if demand.server is not None:
            return demand.server  # it is nobody's turn
        self._dealt += 1
        if demand.lookups:
            return min(self._servers, key=self._lookups.__getitem__)
        return self._servers[(self._dealt - 1) % len(self._servers)]


class Balanced(Placement):
    """Gives each variable to the server that has the fewest bytes of variables.

    Of several such servers it is the first one. Those that grow are counted by what they could
    become, and for themselves: a table of which hardly a row is written would else keep all that is
    stored as a whole off its server.

    What is looked up goes by bytes only where servers would come to differ by much.
    """

    def __init__(self, servers: Sequence[int]) -> None:
        super().__init__(servers)
        self._loads = {grows: dict.fromkeys(servers, 0) for grows in (False, True)}

    def _server_for(self, demand: Demand) -> int:
        loads, server = self._loads[demand.grows], demand.server
        if server is None and demand.lookups:
            least = min(loads.values()) + demand.nbytes
            most = max(least, *loads.values()) + _SMALL_BYTES
            fitting = [one for one in loads if loads[one] + demand.nbytes <= most]
            server = min(fitting, key=lambda one: (self._lookups[one], loads[one]))
        elif server is None:
            server = min(loads, key=loads.__getitem__)
        loads[server] += demand.nbytes
        return server


PLACEMENTS: dict[str, type[Placement]] = {"round_robin": RoundRobin, "balanced": Balanced}
"""The placements by the names that users give them."""


def placement_named(name: str) -> type[Placement]:
    """Return a placement by its name, or refuse the name."""
    if name not in PLACEMENTS:
        raise InvalidArgumentError(
            f"placement must be one of {', '.join(PLACEMENTS)}, not {name!r}"
        )
    return PLACEMENTS[name]


def server_named(device: str) -> int | None:
    """Return the index of the server on which a device is; None if on none."""
    name = DeviceName.parse(device)
    return name.task if name.job == "ps" else None


def server_device(server: int) -> str:
    """Return the full name of the device that a server keeps variables on."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


@dataclass(frozen=True)
class VariablePlacement:
    """Where one variable lives.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: The type of its elements.
        server: The task that hosts it, as in "/job:ps/task:0".
        nbytes: Size of its value in bytes.
        slot_of: For the state of an optimizer, the name of the variable that it belongs to; else
            "".
    """

    __module__ = "stratagem"

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    server: str
    nbytes: int
    slot_of: str = ""


def placements(listing: Mapping[str, Sequence[VariableSpec]]) -> list[VariablePlacement]:
    """Return an entry for each variable of each task, in their order."""
    return [
        VariablePlacement(
            spec.name,
            tuple(spec.tensor.shape),
            decode_dtype(spec.tensor.dtype),
            task,
            nbytes_of(spec.tensor),
            spec.slot_of,
        )
        for task, specs in listing.items()
        for spec in specs
    ]

"""Which program of several coordinates, and which ones have before. This module is pure.

Programs succeed each other, and each incumbent has a number. The first server lets one succeed the
other; all servers are told, and refuse what comes of the former ones. So a program that was
suspended, and does not know that another one goes on in its place, changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from stratagem_proto.errors import SupersededError
from stratagem_proto.v1.succession_pb2 import Incumbent

# Former programs that are remembered. Those before have long been gone.
_MOST_FORMER = 1_000


class Succession:
    """The incumbent of a cluster, and its predecessors.

    Attributes:
        incumbent: The last one, as in the message.
        session: The session by which it took the place here.
    """

    def __init__(self) -> None:
        self.incumbent = Incumbent()
        self.session = b""
        # The program of the last incumbent, also if it has given the place up.
        self._last = b""
        self._former: OrderedDict[bytes, None] = OrderedDict()

    def succeed(self, wanted: Incumbent, session: bytes) -> bool:
        """Let a program take the place, or give it up; return whether it has done so."""
        present = self.incumbent
        is_same = wanted.number == present.number and (
            wanted.program == present.program if wanted.program else session == self.session
        )
        if wanted.number <= present.number and not is_same:
            return False
        if wanted.program:
            self._retire_others(wanted.program)
        self.incumbent, self.session = Incumbent(), session
        self.incumbent.CopyFrom(wanted)
        return True

    def _retire_others(self, program: bytes) -> None:
        if self._last not in (b"", program):
            self._former[self._last] = None
        self._former.pop(program, None)
        self._last = program
        if len(self._former) > _MOST_FORMER:
            self._former.popitem(last=False)

    def refuses(self, program: bytes) -> bool:
        """Return whether another program coordinates in the place of this one."""
        holder = self.incumbent.program
        return (bool(holder) and program != holder) or program in self._former

    def require(self, program: bytes) -> None:
        """Check that a program may ask for something; one without a name may.

        Raises:
            SupersededError: Another one coordinates.
        """
        if program and self.refuses(program):
            incumbent = self.incumbent
            raise SupersededError(
                f"{incumbent.name} coordinates this cluster now, as number {incumbent.number}: "
                "nothing was heard of this program, or it has not waited for its turn. What it "
                "asks is not carried out any more. End it; when it is started again, let it wait "
                "by stratagem.coordinator.stand_by()"
            )

    def facts(self) -> dict[str, Any]:
        """Return everything as JSON."""
        incumbent = self.incumbent
        return {
            "number": incumbent.number,
            "program": incumbent.program.hex(),
            "name": incumbent.name,
            "finished": incumbent.finished,
            "session": self.session.hex(),
            "last": self._last.hex(),
            "former": [one.hex() for one in self._former],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore what `facts` returned."""
        self.incumbent = Incumbent(
            number=facts["number"],
            program=bytes.fromhex(facts["program"]),
            name=facts["name"],
            finished=facts["finished"],
        )
        self.session, self._last = map(bytes.fromhex, (facts["session"], facts["last"]))
        self._former = OrderedDict.fromkeys(map(bytes.fromhex, facts["former"]))

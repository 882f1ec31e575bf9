"""How one parameter-server process is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_proto.memory import half_of_memory
from stratagem_proto.serving.settings import ServingSettings


@dataclass(frozen=True)
class ServerSettings(ServingSettings):
    """Settings of a parameter server.

    Attributes:
        reconnect_seconds: Time after which the session of a client ends whose connection was
            closed, as the system does when a process ends, unless it is heard of again before. Not
            longer than the lease.
        staged_bytes: Most bytes that requests may occupy before they are applied or while they are
            sent; memory of large ones that is kept for the next counts until others need its bytes.
            Memory that clients of the same host share with the server may take a quarter as much
            besides; what does not fit is sent.
        variable_bytes: Most bytes that variables may take, with the state of optimizers and the
            index of tables; None for no limit. What snapshots keep, and the copy by which a table
            grows, is not counted.
        restore: Folder of checkpoints whose latest this run of the server begins with, if there is
            one; "" to begin with nothing.
    """

    job: str = "ps"
    reconnect_seconds: float = 5.0
    staged_bytes: int = field(default_factory=half_of_memory)
    variable_bytes: int | None = None
    restore: str = ""

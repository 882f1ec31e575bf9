"""How one parameter-server process is set up."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.protocol import check_name
from stratagem_psserver.addresses import check_address, is_loopback


def half_of_memory() -> int:
    """Half of the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        bind: "host:port" of the data plane; port 0 takes a free one.
        health_bind: "host:port" of health checks and reflection.
        job: Job name of this task.
        task: Index of this task within its job.
        token: Secret that every handshake must prove.
        insecure: Whether other machines may connect although nothing is encrypted.
        lease_seconds: Time without a call after which a session ends.
        staged_bytes: Most bytes that requests may occupy before they are applied or
            while they are sent.
        restore: Folder of checkpoints whose latest this run of the server begins with,
            if there is one; "" to begin with nothing.
        drain_seconds: Time that running calls get to end when the server stops.

    Raises:
        InvalidArgumentError: An address is none, or the server could be reached from
            other machines without `insecure` or without a token.
    """

    bind: str = "127.0.0.1:0"
    health_bind: str = "127.0.0.1:0"
    job: str = "ps"
    task: int = 0
    token: str = field(default="", repr=False)
    insecure: bool = False
    lease_seconds: float = 30.0
    staged_bytes: int = field(default_factory=half_of_memory)
    drain_seconds: float = 10.0
    restore: str = ""

    def __post_init__(self) -> None:
        for address in (self.bind, self.health_bind):
            check_address(address)
        check_name(self.job, "job")
        if is_loopback(self.bind):
            return
        if not self.insecure:
            raise InvalidArgumentError(
                f"{self.bind} can be reached from other machines and the traffic is "
                "not encrypted; bind to 127.0.0.1, or give --insecure if the network "
                "is trusted"
            )
        if not self.token:
            raise InvalidArgumentError(
                f"{self.bind} can be reached from other machines and there is no "
                "cluster token; give --token-file or set STRATAGEM_TOKEN_FILE to a "
                "file with a secret"
            )

    @property
    def label(self) -> str:
        """The task as messages name it, for instance "/job:ps/task:0"."""
        return f"/job:{self.job}/task:{self.task}"

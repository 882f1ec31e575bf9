"""What `stratagem run` is to run, and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem_deploy.clusters.storage import Storage
from stratagem_proto.notices import Notice


@dataclass(frozen=True)
class ScriptSettings:
    """The script to run, and the settings of the run.

    Attributes:
        command: The script and its arguments.
        ps: Number of parameter servers.
        workers: Number of workers; worker 0 is the chief.
        grace: Seconds that processes get to end when they are told to.
        verbose: Whether servers may tell what they do, and not only what is wrong.
        storage: The folders of the servers.
        max_restarts: How often a worker that failed, or a server that outlives its process, is
            started again, in all.
        full_tracebacks: Whether tracebacks have the frames of Stratagem, too.
        replicas: How many processes have the state of each parameter server.
        movable: Whether tasks can move between parameter servers, of which more can be started.
        coordinators: How many processes run the script to coordinate the workers, which then are
            servers: one does, and the others stand by. 0 if each worker runs it.
        notice: What says that the run is to end, as SIGTERM does.
        tls: Whether the processes know each other by certificates, and encrypt what they send.
        config: Absolute path of the file in which servers look for their settings; "" for none.
    """

    command: tuple[str, ...]
    ps: int = 1
    workers: int = 1
    grace: float = 10.0
    verbose: bool = False
    storage: Storage = field(default_factory=Storage)
    max_restarts: int = 0
    full_tracebacks: bool = False
    replicas: int = 1
    movable: bool = False
    coordinators: int = 0
    notice: Notice | None = None
    tls: bool = False
    config: str = ""

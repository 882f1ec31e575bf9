"""The settings by which servers are replicas of one task."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from stratagem_deploy.clusters.storage import Storage
from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.settings import MOST_REPLICAS


def check_servers(ps: int, storage: Storage, replicas: int = 1, movable: bool = False) -> None:
    """Check that the parameter servers of a cluster can be what they are to be.

    Args:
        ps: Their number.
        storage: What they find on disk, and keep there.
        replicas: How many replicas each task has.
        movable: Whether tasks may move between them.

    Raises:
        InvalidArgumentError: They cannot.
        FailedPreconditionError: Another number of servers wrote the checkpoint to begin with.
    """
    storage.check_written_by(ps)
    _check_replicas(replicas, ps, storage)
    if movable:
        _check_movable(replicas, ps, storage)


def _check_replicas(replicas: int, ps: int, storage: Storage) -> None:
    if not 1 <= replicas <= MOST_REPLICAS:
        raise InvalidArgumentError(
            f"{replicas} replicas of each parameter server cannot be; ask for 1, or for "
            f"{MOST_REPLICAS}: a primary and a backup"
        )
    if replicas > 1 and not ps:
        raise InvalidArgumentError(
            f"a cluster without parameter servers has no use for {replicas} replicas; ask for "
            "servers, or leave the replicas out"
        )
    if replicas > 1 and storage.durability == "snapshot":
        raise InvalidArgumentError(
            "replicas cannot have durability 'snapshot': one that is started again would have a "
            "state of the past. Use 'log', or 'none', with which the other replica has the state"
        )


def _check_movable(replicas: int, ps: int, storage: Storage) -> None:
    if not ps:
        raise InvalidArgumentError(
            "a cluster without parameter servers has no tasks that could move; ask for servers, or "
            "leave movable out"
        )
    if replicas > 1:
        raise InvalidArgumentError(
            "servers that have replicas keep their tasks; ask for replicas=1, or leave movable out"
        )
    if storage.durability == "snapshot":
        raise InvalidArgumentError(
            "tasks cannot move with durability 'snapshot': a server that is started again would "
            "have a state of the past. Use 'log' or 'none'"
        )


def arbiter_folder(storage: Storage, private: Path) -> Path:
    """Return where an arbiter of this host keeps which replica serves.

    Args:
        storage: What the servers keep on disk. If they do, the arbiter has to as well.
        private: A folder that ends with the cluster.
    """
    root = Path(storage.durability_folder or private)
    root.mkdir(parents=True, exist_ok=True)
    return root / "arbiter"


def replica_settings(
    replicas: int, replica: int, arbiter: Path, movable: bool
) -> Mapping[str, int | str]:
    """Return the settings by which a task has several processes, or may move; else none.

    Args:
        replicas: How many its task has.
        replica: Its number among them.
        arbiter: The folder of the arbiter.
        movable: Whether the task may move to another server.
    """
    if replicas == 1:
        return {"arbiter": f"file:{arbiter}"} if movable else {}
    return {"replicas": replicas, "replica": replica, "arbiter": f"file:{arbiter}"}


def replica_options(
    replicas: int, replica: int, arbiter: Path, movable: bool = False
) -> tuple[str, ...]:
    """Return the same as options of a command line."""
    settings = replica_settings(replicas, replica, arbiter, movable)
    return tuple(chain.from_iterable((f"--{name}", str(value)) for name, value in settings.items()))

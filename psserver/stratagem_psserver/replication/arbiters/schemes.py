"""The arbiters that there are, by the scheme of --arbiter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stratagem_proto.errors import InvalidArgumentError
from stratagem_psserver.replication.arbiters.arbiter import Arbiter
from stratagem_psserver.replication.arbiters.chief_arbiter import ChiefArbiter
from stratagem_psserver.replication.arbiters.etcd_register import EtcdRegister
from stratagem_psserver.replication.arbiters.file_register import FileRegister
from stratagem_psserver.replication.arbiters.lease_register import LeaseRegister
from stratagem_psserver.replication.arbiters.register import Register
from stratagem_psserver.replication.arbiters.threaded_arbiter import ThreadedArbiter
from stratagem_psserver.settings import ServerSettings

_REGISTERS: Mapping[str, Callable[[str, ServerSettings], Register]] = {
    "file": FileRegister,
    "kubernetes": LeaseRegister,
    "etcd": EtcdRegister,
}


def arbiter_of(settings: ServerSettings, seconds: float = 1.0) -> Arbiter:
    """Return the arbiter of a task that `settings.arbiter` names.

    It blocks for a moment: for the start of a server.

    Args:
        settings: Those of a replica of the task.
        seconds: How long a call takes at most.

    Raises:
        InvalidArgumentError: It names none, or one that this host cannot use.
        FailedPreconditionError: Kubernetes is not configured here.
    """
    if settings.arbiter == "chief":
        return ChiefArbiter(settings, seconds)
    scheme, _, address = settings.arbiter.partition(":")
    if scheme not in _REGISTERS:
        raise InvalidArgumentError(
            f"--arbiter {settings.arbiter!r} is none; give file:PATH if all replicas are on this "
            "host, else kubernetes:NAMESPACE/NAME, etcd:HOST:PORT[,HOST:PORT...]/PREFIX or chief"
        )
    return ThreadedArbiter(_REGISTERS[scheme](address, settings), seconds)

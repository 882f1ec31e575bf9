"""Who may be on the network of the workers, which read and believe what comes from it."""

from __future__ import annotations

from stratagem._multi_worker.place import WorkerPlace
from stratagem_proto.configuration.insecure import VARIABLE, is_insecure
from stratagem_proto.errors import FailedPreconditionError


def require_trust(place: WorkerPlace) -> None:
    """Check that workers on several machines are meant to speak without certificates.

    Raises:
        FailedPreconditionError: Nobody has said so.
    """
    if place.is_on_one_machine or is_insecure():
        return
    raise FailedPreconditionError(
        f"{place.name} would meet workers of other machines at {place.meeting_point}, by the store "
        "and the collectives of torch.distributed, which know no secret and encrypt nothing; set "
        f"{VARIABLE}=true for all workers if nobody else is on their network, or train with "
        "ParameterServerStrategy and certificates",
        task=place.name,
    )

"""What a folder of checkpoints has besides values, and how they follow one another in it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    StratagemError,
)
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.policy import CheckpointPolicy
from stratagem_storage.stores.places import Place
from stratagem_storage.stores.store import is_checkpoint

_LOG = logging.getLogger("stratagem")

# The name in states under which the number of counted steps is.
STEPS = "stratagem/steps"

# Each request of a worker has its states.
_MOST_BYTES = 1 << 16

ENDED = (
    "the run has ended, and an ended run takes no more steps: look at the `ended` of what resume() "
    "has returned, and train on in another folder, whose `begin` loads what this run has saved"
)


UNSHARED = (
    "{} was called after local steps that were not shared, and would leave them out; call share() "
    "of LocalSteps first"
)


@runtime_checkable
class Stateful(Protocol):
    """What goes on from a state, as iterators over distributed datasets do."""

    def state_dict(self) -> Any:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Go on from a state."""


def require_registrable(name: str, stateful: object) -> None:
    """Check that the state of something may be in checkpoints under a name.

    Raises:
        InvalidTypeError: It has no state.
        InvalidArgumentError: The name is taken.
    """
    if name == STEPS:
        raise InvalidArgumentError(
            f"the name {name!r} is taken by strategy.steps(); register {name!r} under another"
        )
    if not isinstance(stateful, Stateful):
        raise InvalidTypeError(
            f"{type(stateful).__name__} lacks state_dict() or load_state_dict(); "
            "register what has both, such as an iterator over a distributed dataset"
        )


def states_as_json(states: Mapping[str, Any]) -> str:
    """Return the states of a worker as JSON.

    Raises:
        InvalidArgumentError: JSON cannot express them, or they are too large.
    """
    names = ", ".join(map(repr, states))
    try:
        content = json.dumps(states, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the state of one of {names} is not what JSON can express: {error}; "
            "register something else, or keep it yourself"
        ) from error
    if len(content) > _MOST_BYTES:
        raise InvalidArgumentError(
            f"the states of {names} are {len(content)} bytes as JSON, but travel "
            f"with each request, and are {_MOST_BYTES} at most; register less"
        )
    return content


@dataclass(frozen=True)
class Contents:
    """What the chief adds to what the servers hold.

    Attributes:
        local: Tensors of its own, by name, which nobody changes from now on.
        extra: What JSON can express.
        num_workers: How many workers there are.
        ended: Whether their run is over.
    """

    local: Mapping[str, torch.Tensor]
    extra: Mapping[str, Any]
    num_workers: int
    ended: bool = False

    def __post_init__(self) -> None:
        try:
            json.dumps(dict(self.extra))
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"extra must be what JSON can express: {error}") from error


@dataclass(frozen=True)
class Series:
    """The checkpoints that follow one another in a folder.

    Attributes:
        keep: How many there are to be.
        incremental: Whether the next one has only the rows that differ from the latest one.
    """

    keep: int
    incremental: bool

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InvalidArgumentError(f"keep is {self.keep}; keep at least 1 checkpoint")


# After so many incremental checkpoints comes a whole one: a restoration reads a row in one of them,
# and asks each before whether it has it.
_MOST_BASES = 8


def latest_base(root: Place, key: str) -> Checkpoint | None:
    """Return the latest checkpoint in a folder, if the next one can be read beside it."""
    try:
        latest = open_checkpoint(root, CheckpointPolicy(key=key))
    except NotFoundError:
        return None
    except StratagemError as error:
        _LOG.warning("the next checkpoint will have all rows, since %s", error)
        return None
    is_one = is_checkpoint(latest.folder.name) and len(latest.index.bases) < _MOST_BASES
    return latest if is_one else None

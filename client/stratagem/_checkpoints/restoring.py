"""Values of a checkpoint that wait for their variables, and what tells those of one name apart."""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from stratagem._core.names import Origin, Origins, form_of, origins_by_names
from stratagem._core.variables import Variable
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from stratagem_proto.programs.optimizers import SlotName


@dataclass(frozen=True)
class CheckpointEntry:
    """Something with a value to be saved and restored.

    Attributes:
        name: Its name in checkpoints.
        shape: Its shape.
        dtype: Its element type.
        read: Returns a snapshot of the value.
        write: Replaces the value by a tensor of this shape and dtype.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    write: Callable[[torch.Tensor], object]

    @classmethod
    def of_variable(cls, variable: Variable) -> CheckpointEntry:
        """Return the entry of a variable; to be used in cross-replica context."""
        return cls(
            variable.name,
            variable.shape,
            variable.dtype,
            variable._saved_value,
            partial(variable.assign, read_value=False),
        )

    @classmethod
    def of_tensor(cls, name: str, tensor: torch.Tensor) -> CheckpointEntry:
        """Return the entry of a tensor that is written in place."""
        return cls(
            name,
            tensor.shape,
            tensor.dtype,
            lambda: tensor.detach().clone(),
            partial(_copy, tensor),
        )

    def require_fit(self, value: Any) -> None:
        """Check that `value` can be written.

        Raises:
            InvalidTypeError: It is no tensor.
            InvalidArgumentError: It has another shape or dtype.
        """
        if not isinstance(value, torch.Tensor):
            raise InvalidTypeError(
                f"the checkpoint has a {type(value).__name__} for {self.name!r}; its "
                "values are tensors"
            )
        if (value.shape, value.dtype) != (self.shape, self.dtype):
            raise InvalidArgumentError(
                f"the checkpoint has {self.name!r} with shape {tuple(value.shape)} and "
                f"dtype {value.dtype}, but here it has shape {tuple(self.shape)} and "
                f"dtype {self.dtype}; restore into the model that was saved"
            )


@torch.no_grad()
def _copy(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.copy_(value)


Slots = dict[str, dict[str, torch.Tensor]]
"""The state that optimizers have for one variable, by optimizer and torch's key."""


class DeferredState:
    """The values of a checkpoint that nothing has taken yet."""

    def __init__(self) -> None:
        self._values: dict[str, torch.Tensor] = {}
        self._slot_names: defaultdict[str, list[SlotName]] = defaultdict(list)

    def replace(self, values: Mapping[str, torch.Tensor]) -> None:
        """Forget the values there are, and have others from now on."""
        self._values = dict(values)
        self._slot_names.clear()
        for name in values:
            slot = SlotName.parse(name)
            if slot is not None:
                self._slot_names[slot.variable].append(slot)

    def names(self) -> list[str]:
        return sorted(self._values)

    def restore(self, entry: CheckpointEntry) -> None:
        """Write to `entry` its value, if there is one, which is then taken.

        Raises:
            InvalidArgumentError: It does not fit.
        """
        if entry.name in self._values:
            entry.require_fit(self._values[entry.name])
            entry.write(self._values.pop(entry.name))

    def take_slots(self, variable: str) -> Slots:
        """Return the optimizers' state for a variable, and forget it."""
        slots: Slots = defaultdict(dict)
        for slot in self._slot_names.pop(variable, ()):
            # A variable may have been named like this itself.
            if str(slot) in self._values:
                slots[slot.optimizer][slot.key] = self._values.pop(str(slot))
        return slots


class UnusedValues(Protocol):
    """What a checkpoint has that nothing has taken yet."""

    def names(self) -> list[str]:
        """Return the names of the values."""


@dataclass(frozen=True)
class UnusedOfSeveral:
    """What a checkpoint has for several that take of it, and none has taken yet."""

    takers: Sequence[UnusedValues]

    def names(self) -> list[str]:
        """Return the names of the values."""
        return sorted(name for taker in self.takers for name in taker.names())


class RestoreStatus:
    """What became of a checkpoint that was restored. Spec: CKP-2.

    Args:
        deferred: What nothing has taken yet.
        missing: The names that this program had, and the checkpoint has not.
        extra: What `save` was given to keep besides values.
        position: How many steps of `strategy.steps` this task had taken.
        unknown: Why nobody knows how far this process is, as a clause; empty if it is known.

    Attributes:
        missing: The names that this program had when it restored, and that the checkpoint lacks.
            There are none unless `strict=False`.
    """

    def __init__(
        self,
        deferred: UnusedValues,
        missing: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
        position: int = 0,
        unknown: str = "",
    ) -> None:
        self._deferred = deferred
        self.missing = list(missing)
        self._extra: Mapping[str, Any] = extra or {}
        self._position = position
        self._unknown = unknown

    @property
    def extra(self) -> Mapping[str, Any]:
        """What `save` was given to keep besides values.

        Where this process joins a run under way, it is that of the latest checkpoint.

        Raises:
            FailedPreconditionError: The run has gone on since, and this process would take for its
                own place what is that of the chief then.
        """
        self._require_known("extra")
        return self._extra

    @property
    def position(self) -> int:
        """How many steps of `strategy.steps` this task has taken; that loop begins there.

        Raises:
            FailedPreconditionError: The task has trained in this run, and counted no steps.
        """
        self._require_known("position")
        return self._position

    def _require_known(self, what: str) -> None:
        if self._unknown:
            raise FailedPreconditionError(f"{what!r} does not say where to go on: {self._unknown}")

    @property
    def unused(self) -> list[str]:
        """The names for which nothing has been made so far."""
        return self._deferred.names()

    def assert_consumed(self) -> RestoreStatus:
        """Check that everything in the checkpoint is used, and everything here was in it.

        Returns:
            This status.

        Raises:
            FailedPreconditionError: Something is not.
        """
        if self.unused:
            raise FailedPreconditionError(
                f"the checkpoint has {', '.join(map(repr, self.unused))}, for which "
                "this program has made no variable; make it under the same name, or "
                "leave the check out"
            )
        return self.assert_existing_objects_matched()

    def assert_existing_objects_matched(self) -> RestoreStatus:
        """Check that the checkpoint had what this program had when it restored.

        Returns:
            This status.

        Raises:
            FailedPreconditionError: It lacks something, which `strict=False` left as it was.
        """
        if self.missing:
            raise FailedPreconditionError(
                f"the checkpoint has no {', '.join(map(repr, self.missing))}, which were left as "
                "they were; restore into the program that was saved, or leave the check out"
            )
        return self

    def expect_partial(self) -> RestoreStatus:
        """Return this status: what is not used is not warned of, with or without this call."""
        return self


class Resumption:
    """Where a program goes on, as `strategy.resume` has found.

    Args:
        checkpoint: See below.
        extra: See below.
        position: See below.
        ended: See below.
        finish: Ends the run, with what to keep besides values and the number of checkpoints.

    Attributes:
        checkpoint: The path of the latest checkpoint; "" if there was none.
        extra: What was saved with it besides values; empty if there was none. Where this process
            joins a run, it is what the chief had saved last, and others may have gone on since.
        position: How many steps of `strategy.steps` this task has taken in all processes that ran
            it.
        ended: Whether the run is over: all workers had called `finish`. No steps are left then.
    """

    def __init__(
        self,
        checkpoint: str,
        extra: Mapping[str, Any],
        position: int,
        ended: bool,
        finish: Callable[[Mapping[str, Any], int], None],
    ) -> None:
        self.checkpoint, self.extra = checkpoint, extra
        self.position, self.ended = position, ended
        self._finish = finish

    def finish(self, extra: Mapping[str, Any] | None = None, keep: int = 1) -> None:
        """End the run: all workers make the call, and the chief saves a last checkpoint.

        It returns when that is written. Whoever resumes from the folder afterwards is told that the
        run has `ended`; a second call changes nothing.

        Args:
            extra: What to keep besides values, as for `strategy.save`.
            keep: How many checkpoints the folder keeps, the last one included.

        Raises:
            DeadlineExceededError: Other workers have not made the call within `peer_seconds`.
            FailedPreconditionError: A loop over `strategy.steps` has not ended.

        Otherwise as `strategy.save`.
        """
        self._finish(extra or {}, keep)
        self.ended = True


_KEY = "stratagem.origins"
_ATTRIBUTE = "_origins"


def with_origins(state: Mapping[str, torch.Tensor], origins: Origins) -> dict[str, torch.Tensor]:
    """Return a state that remembers the origins of what has namesakes.

    They are an attribute, as those that torch keeps in the `state_dict` of modules: `torch.save`
    keeps it, and a copy by a comprehension leaves it out.
    """
    by_wanted: dict[str, dict[str, Origin]] = {}
    for name, origin in origins.items():
        by_wanted.setdefault(origin.wanted, {})[name] = origin
    kept = {
        name: list(origin)
        for group in by_wanted.values()
        if len(group) > 1
        for name, origin in group.items()
    }
    if not kept:
        return dict(state)
    remembering = OrderedDict(state)
    setattr(remembering, _ATTRIBUTE, kept)
    return remembering


def origins_in(state: Mapping[str, torch.Tensor]) -> dict[str, Origin]:
    """Return the origins of what a state has, as far as it, or its names, tell them."""
    forms = {
        name: form_of(value.dtype, value.shape)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and SlotName.parse(name) is None
    }
    kept = getattr(state, _ATTRIBUTE, {})
    known = {name: Origin(*kept[name]) for name in kept if name in forms}
    return {**origins_by_names(forms), **known}


def metadata_of(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return what a file is to keep of a state besides its tensors."""
    kept = getattr(state, _ATTRIBUTE, None)
    return {_KEY: json.dumps(kept, separators=(",", ":"))} if kept else {}


def read_with(
    state: dict[str, torch.Tensor], metadata: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the state of a file, which remembers what the file kept of origins."""
    found: dict[str, Origin] = {}
    # Of another library's file, or a damaged one, the names tell enough.
    with suppress(LookupError, ValueError, TypeError, AttributeError):
        found = {str(name): _checked(kept) for name, kept in json.loads(metadata[_KEY]).items()}
    return with_origins(state, found)


def _checked(kept: object) -> Origin:
    if not isinstance(kept, list):
        raise TypeError
    *texts, batch, phase = kept
    wanted, form, structure, label = map(str, texts)
    return Origin(wanted, form, structure, label, int(batch), int(phase))

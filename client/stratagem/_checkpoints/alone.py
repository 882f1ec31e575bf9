"""Checkpoints of a program without a cluster, in the form that servers read and write."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from stratagem._checkpoints.files import message_of, writer
from stratagem._checkpoints.restoring import RestoreStatus, Resumption, origins_in
from stratagem._checkpoints.series import (
    ENDED,
    STEPS,
    UNSHARED,
    Contents,
    Series,
    Stateful,
    latest_base,
    require_registrable,
    states_as_json,
)
from stratagem._core.protocols import LocalStepsTold
from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.protocol import SESSION_ID_BYTES
from stratagem_proto.secret_files import CHECKPOINT_KEY_FILE
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VARIABLE_KIND_SLOT, VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.entries import WriteOptions
from stratagem_storage.checkpoint.folder import (
    LOCAL_PART,
    Checkpoint,
    NewCheckpoint,
    changed_rows,
    open_checkpoint,
    require_room,
)
from stratagem_storage.checkpoint.index import Index, Published
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.checkpoint.policy import policy_of_environment
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import Place, absolute_place, place_of

_LOG = logging.getLogger("stratagem")

TASK = "/job:worker/task:0"
"""The task that a program without a cluster is in checkpoints."""

State = Mapping[str, torch.Tensor]


def is_one_file(path: str | os.PathLike[str], has_options: bool) -> bool:
    """Return whether what is saved without a cluster becomes a file, in place of a folder.

    Raises:
        InvalidArgumentError: It does, and there are options that only a folder has.
    """
    place = place_of(path)
    is_one = store_of(place).is_file(place)
    if place.name.endswith(".safetensors") and not (isinstance(place, Path) and place.is_dir()):
        is_one = True
    if is_one and has_options:
        raise InvalidArgumentError(
            f"without a cluster {str(place)!r} is one file of tensors; leave keep, extra and "
            "incremental out, or give the path of a folder, such as 'run'"
        )
    return is_one


class SavedTables(Protocol):
    """The rows of tables as of one moment."""

    def contents(self, base: Checkpoint | None) -> list[Content]:
        """Return what there is to write, or what differs from an earlier checkpoint."""

    def taken(self, contents: Sequence[Content]) -> Iterator[torch.Tensor]:
        """Yield the values of contents once."""

    def close(self) -> None:
        """Release what is kept for them."""


class Held(NamedTuple):
    """What a program has for a checkpoint.

    Attributes:
        state: Values by name, which nobody changes from now on.
        tables: The rows of tables, if there are some.
    """

    state: State
    tables: SavedTables | None = None


class AloneCheckpoints(LocalStepsTold):
    """The folders of checkpoints of a program without a cluster, and how far it is.

    `ran` is called behind each run and each step of an optimizer, so that a checkpoint has, as one
    of servers has, the position after the last of them that its variables contain.

    Args:
        has_run: Whether something has run already.
    """

    def __init__(self, has_run: bool) -> None:
        self._registered: dict[str, Stateful] = {}
        self._deferred: dict[str, Any] = {}
        # As of the last run, or step of an optimizer.
        self._states: dict[str, Any] = {}
        # How many steps of `steps` were taken; during one, without it until something has run.
        self._position, self._is_known = 0, False
        self._base, self._is_inside = 0, False
        self._counts = False
        self._step_ran = self._is_resumed = self._ended = False
        self._has_run = has_run
        # Whether local steps were taken since the last share; what checkpoints then have.
        self._unshared = self._is_sharing = False
        self._shared: tuple[dict[str, Any], int] = ({}, 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> AloneCheckpoints:
        """Return those of another program, which has done nothing yet."""
        return AloneCheckpoints(False)

    # How far the program is.

    def register(self, name: str, stateful: Any) -> None:
        """Have checkpoints contain a state; see `register_for_checkpointing`."""
        require_registrable(name, stateful)
        if name in self._deferred:
            stateful.load_state_dict(self._deferred.pop(name))
        state = stateful.state_dict()
        states_as_json({**self._states, name: state})
        self._registered[name], self._states[name] = stateful, state

    def ran(self) -> None:
        """Note that something has run, which the variables contain."""
        self._has_run = True
        if self._is_inside and not self._step_ran:
            self._step_ran = True
            self._position += 1
        for name, stateful in self._registered.items():
            self._states[name] = stateful.state_dict()

    def begin_local_step(self) -> None:
        self.require_counted("LocalSteps")
        if not self._unshared:
            self._shared = dict(self._states), self._position - self._step_ran
        self._unshared = True

    @contextmanager
    def sharing(self) -> Iterator[bool]:
        self._is_sharing = True
        try:
            yield False
            self._unshared = False
        finally:
            self._is_sharing = False

    def drop_local_steps(self) -> None:
        self._unshared = False

    @property
    def has_nothing_to_share(self) -> bool:
        return self._counts and not self._unshared

    def steps(self, stop: int, start: int | None) -> Iterator[int]:
        """Yield the numbers of the steps that are left; see `ParameterServerStrategy.steps`."""
        if self._is_inside:
            raise FailedPreconditionError(
                "a loop over strategy.steps() is within another one, whose steps would be counted "
                "twice; count the inner steps alone, or take a range() for one of the loops"
            )
        if not self._is_known:
            self._position, self._is_known = start or 0, True
        base, self._is_inside, self._counts = self._base, True, True
        try:
            while self._position < base + stop:
                if self._ended:
                    raise FailedPreconditionError(ENDED)
                self._position, self._step_ran = max(self._position, base), False
                yield self._position - base
                if not self._step_ran:
                    self._position += 1
        finally:
            self._base, self._is_inside = base + stop, False

    def require_counted(self, optimizer: str) -> None:
        """Check that an optimizer steps where its step is counted, if it has to be.

        Raises:
            FailedPreconditionError: The program has resumed, and this is in no loop over `steps`.
        """
        if self._is_resumed and not (self._is_inside or self._is_sharing):
            raise FailedPreconditionError(
                f"{optimizer} steps outside of a loop over strategy.steps(), and the program has "
                "called resume(): once it is started again, nobody would know of this step, and it "
                "would be taken again. Loop over strategy.steps() wherever an optimizer steps"
            )

    # Saving and restoring.

    def save(
        self,
        path: str | os.PathLike[str],
        held: Callable[[], Held],
        series: Series,
        extra: Mapping[str, Any],
        ended: bool = False,
    ) -> Future[None]:
        """Save what the program has as a checkpoint of a folder."""
        place, key = absolute_place(path), CHECKPOINT_KEY_FILE.from_environment()
        contents = Contents({}, extra, 1, ended)
        known = self._shared if self._unshared else (self._states, self._position)
        states = {**known[0], **({STEPS: known[1]} if self._counts else {})}
        workers = {"count": 1, "states": {TASK: json.loads(states_as_json(states))}}
        state, tables = held()
        contents, self._has_run = replace(contents, local=state), True
        work = partial(_save, place, contents, tables, series, workers, key)
        return writer.start(work)

    def restore(
        self,
        path: str | os.PathLike[str],
        load: Callable[[Checkpoint], RestoreStatus],
    ) -> RestoreStatus:
        """Have a checkpoint of a folder loaded, and go on where it was saved."""
        return self._restore(open_checkpoint(place_of(path), policy_of_environment()), load)

    def _restore(
        self, checkpoint: Checkpoint, load: Callable[[Checkpoint], RestoreStatus]
    ) -> RestoreStatus:
        index = checkpoint.index
        known, count = index.workers.get("states", {}), index.workers.get("count", 0)
        states: dict[str, Any] = {}
        if known and count == 1:
            (states,) = (dict(one) for one in known.values())
        elif known:
            _LOG.warning(
                "the checkpoint has the states of %d workers, such as how far they had read their "
                "data, and this program is alone; what was registered stays where it is",
                count,
            )
        position = states.pop(STEPS, None)
        if self._counts and position is None:
            raise FailedPreconditionError(
                f"the program counts its steps by strategy.steps(), and {str(checkpoint.folder)!r} "
                "does not say how many it had taken; start the program again to go back to it, and "
                "say where to begin: strategy.steps(stop, start=...)"
            )
        status = load(checkpoint)
        if position is not None or not self._is_inside:
            self._is_known, self._position = position is not None, position or 0
        self._unshared = False
        self._step_ran = True  # what runs in this step is none of a step after the checkpoint
        self._deferred = dict(states)
        for name in self._registered.keys() & states.keys():
            self._registered[name].load_state_dict(self._deferred.pop(name))
            self._states[name] = states[name]
        self._has_run = True
        return RestoreStatus(status._deferred, status.missing, index.extra, position or 0)

    def resume(
        self,
        path: str | os.PathLike[str],
        begin: Callable[[], object] | None,
        load: Callable[[Checkpoint], RestoreStatus],
        held: Callable[[], Held],
    ) -> Resumption:
        """Go on with the latest checkpoint of a folder, or begin; see `resume` of the strategy."""
        if self._has_run or self._is_known or self._is_resumed:
            raise FailedPreconditionError(
                "this program has called restore(), save() or resume(), or trained before "
                "resume(), and would lose that; call resume() once, first after the model and its "
                "optimizers were made, and load other initial values in its `begin`"
            )
        folder, extra = "", dict[str, Any]()
        checkpoint: Checkpoint | None = None
        with suppress(NotFoundError):
            checkpoint = open_checkpoint(place_of(path), policy_of_environment())
        if checkpoint is not None:
            folder, extra = str(checkpoint.folder), dict(checkpoint.index.extra)
            self._require_resumable(checkpoint)
            self._restore(checkpoint, load).assert_consumed()
            self._ended = checkpoint.index.ended
        else:
            require_room(absolute_place(path))
            if begin is not None:
                begin()
        self._is_known = self._counts = self._is_resumed = True

        def finish(last: Mapping[str, Any], keep: int) -> None:
            self._require_complete()
            if not self._ended:
                self.save(path, held, Series(keep, incremental=False), last, True).result()
                self._ended = True

        return Resumption(folder, extra, self._position, self._ended, finish)

    def _require_complete(self) -> None:
        if self._is_inside:
            raise FailedPreconditionError(
                "finish() is called within a loop over strategy.steps(), whose steps would be "
                "left out; call it behind the loop"
            )
        if self._unshared:
            raise FailedPreconditionError(UNSHARED.format("finish()"))

    def _require_resumable(self, checkpoint: Checkpoint) -> None:
        workers, place = checkpoint.index.workers, str(checkpoint.folder)
        if workers and workers["count"] != 1:
            raise FailedPreconditionError(
                f"{place!r} was saved by {workers['count']} workers, and this program is alone, so "
                "that its share of the data is another; start as many, or go on with it by "
                "strategy.restore(), and say where to begin: strategy.steps(stop, start=...)"
            )
        states = list(workers.get("states", {}).values())
        if workers and not (states and STEPS in states[0]):
            raise FailedPreconditionError(
                f"{place!r} does not say how many steps its program had taken, since that did not "
                "count them; go on with it by strategy.restore(), and say where to begin: "
                "strategy.steps(stop, start=...)"
            )


def _save(
    root: Place,
    contents: Contents,
    tables: SavedTables | None,
    series: Series,
    workers: Mapping[str, Any],
    key: str,
) -> None:
    with ExitStack() as closing:
        if tables is not None:
            closing.callback(tables.close)
        base = latest_base(root, key) if series.incremental else None
        try:
            described, rows = _described(contents.local, base), _rows_of(tables, base)
        except DataLossError as error:
            _LOG.warning("the next checkpoint will have all rows, since %s", error)
            base = None
            described, rows = _described(contents.local, None), _rows_of(tables, None)
        new = NewCheckpoint(root)
        try:
            values = chain.from_iterable(_values(one, value) for one, value in described)
            if tables is not None:
                values = chain(values, tables.taken(rows))
            options = WriteOptions(has_digests=bool(key))
            listed = [*(one for one, _ in described), *rows]
            part = write_part(new.folder, LOCAL_PART, listed, values, options=options)
            beside = base.as_base if base is not None else None
            index = Index.of_parts([part], {}, contents.extra, workers, beside)
            now = time.time_ns() // 1_000_000
            published = Published(now, secrets.token_bytes(SESSION_ID_BYTES), now)
            new.commit(replace(index, published=published, ended=contents.ended), series.keep, key)
        except BaseException:
            new.abandon()
            raise


def _rows_of(tables: SavedTables | None, base: Checkpoint | None) -> list[Content]:
    return [] if tables is None else tables.contents(base)


def _described(state: State, base: Checkpoint | None) -> list[tuple[Content, torch.Tensor]]:
    found, origins = [], origins_in(state)
    for name, given in state.items():
        value, slot = given.detach().cpu().contiguous(), SlotName.parse(name)
        spec = VariableSpec(name=name, tensor=spec_of(value), kind=VARIABLE_KIND_MODEL)
        if slot is not None and slot.variable in state:
            spec.kind, spec.slot_of = VARIABLE_KIND_SLOT, slot.variable
        elif name in origins and origins[name].batch >= 0:  # else it is but guessed
            spec.origin.CopyFrom(message_of(origins[name]))
        content = Content(spec)
        if base is not None:
            content = replace(content, changed=changed_rows(content, [value], base))
        found.append((content, value))
    return found


def _values(content: Content, value: torch.Tensor) -> Sequence[torch.Tensor]:
    if content.changed is None:
        return [value]
    rows = value[content.changed] if value.dim() else value.reshape(1)[content.changed]
    return [content.changed, rows]

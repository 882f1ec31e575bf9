"""Rows of tables that are asked for while the steps before the one that needs them compute.

Such a step sees of its own worker what it would see without: a row that the worker has stepped
since it was asked for is asked for again after the push, and what was asked for before tables have
changed in any other way is dropped. Where steps are bounded or synchronous, what others do counts
as well, and nothing is asked for before the worker may begin the step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from stratagem._core.distributed_values import DistributedValues
from stratagem._core.nests import leaves
from stratagem._core.tensors import require_integers
from stratagem._core.waiting import uninterrupted
from stratagem._gradients import OptimizerStep
from stratagem._input.lookahead import Lookups
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.pushing.push import PullMode
from stratagem._parameter_server.tables.joint_lookup import JointLookup, Wanted
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, StratagemError

_LOG = logging.getLogger("stratagem")

# So many batches one after the other whose rows no run has used show that none will.
_UNUSED_BATCHES = 3

Stepped: TypeAlias = Mapping[TableVariable, Sequence[torch.Tensor | None]]
"""Rows of tables that a step changes, in any order and with repetitions; None for all rows."""


@dataclass(eq=False)
class RowsAhead:
    """What a batch looks up.

    Attributes:
        wanted: The lookups; a table may come several times.
        asked_in: What tables were like when their rows were asked for.
        found: What has come, by tables of one joint lookup each; changed by the background thread
            alone, until that is done.
        stale: Which of the rows that have come this worker has stepped since, by table; likewise.
        done: The last thing that this thread has to do for them; None if they are not asked for.
        threads: Keeps the thread alive, which ends with the last of those whom it works for.
        noted: How many pushes it was told of.
        corrected: How many of these its corrections have taken account of.
    """

    wanted: Sequence[Wanted]
    asked_in: object = None
    found: dict[TableVariable, JointLookup] = field(default_factory=dict)
    stale: dict[TableVariable, torch.Tensor] = field(default_factory=dict)
    done: Future[None] | None = None
    threads: ThreadPoolExecutor | None = None
    noted: int = 0
    corrected: int = 0


class TableLookahead:
    """Asks for rows ahead of the runs that look them up.

    A `RowFetcher` calls `ask` and `present` for each batch. `hand_over` is called when a run
    begins, and `pushing` is entered around each push.

    Args:
        store: The variables on the servers.
        replicas: How many run in this process.
    """

    def __init__(self, store: RemoteStore, replicas: int) -> None:
        self._store, self._replicas = store, replicas
        self._open: WeakSet[RowsAhead] = WeakSet()
        self._presented: WeakKeyDictionary[object, RowsAhead] = WeakKeyDictionary()
        self._unused = 0
        # What steps change whose push may not be finished yet, the one in flight among them.
        self._unfinished: list[Stepped] = []
        self._in_flight: Stepped | None = None
        self._changing = threading.Lock()
        self._threads: Callable[[], ThreadPoolExecutor | None] = lambda: None

    @property
    def may_ask_ahead(self) -> bool:
        """Whether steps wait for nobody, so that one may have rows as of an earlier moment."""
        return self._store.step_tracker.is_free() and not self._store.servers.snapshot

    def ask(self, wanted: Sequence[Wanted]) -> RowsAhead:
        """Ask for rows if they may be used by a later step; otherwise their run pulls them.

        Raises:
            InvalidArgumentError: A table belongs to another strategy.
        """
        for table in {each.table for each in wanted}:
            if table.store is not self._store:
                raise InvalidArgumentError(
                    f"{table!r} belongs to another strategy than the one whose lookahead is to ask "
                    "for its rows; give it to that one's",
                    variable=table.name,
                )
        ahead = RowsAhead(wanted)
        if wanted and self.may_ask_ahead:
            ahead.asked_in = self._state()
            with self._changing:
                unfinished = [*self._unfinished]
                ahead.noted = len(unfinished)
                self._open.add(ahead)
                self._submit(ahead, partial(_fetch, ahead))
                for stepped in unfinished:
                    self._submit(ahead, partial(_mark, ahead, stepped))
        return ahead

    def present(self, owner: object, ahead: RowsAhead | None) -> None:
        """Have the next run start with rows, and with no others of their owner."""
        if self._presented.pop(owner, ahead) is not ahead:
            self._note_unused()
        if ahead is not None:
            self._presented[owner] = ahead
            self._correct(ahead)

    def _note_unused(self) -> None:
        self._unused += 1
        if self._unused == _UNUSED_BATCHES:
            _LOG.warning(
                "strategy.lookahead has asked for the rows of %d batches one after the other that "
                "no strategy.run with gradients has used; call the training step by strategy.run, "
                "or leave lookahead out",
                self._unused,
            )

    def hand_over(self) -> None:
        """Give tables the rows of the batches that were given out last; when a run begins.

        Raises:
            RowIndexError: There is no such row.
            StratagemError: A server could not be reached.
        """
        presented = [*self._presented.values()]
        self._presented.clear()
        for ahead in presented:
            self._unused = 0
            found = self._usable(ahead)
            self._open.discard(ahead)
            left = [each for each in ahead.wanted if each.table not in found]
            lookups = [one for joint in _joint(left) for one in joint.pulled()]
            for joint in dict.fromkeys(found.values()):
                lookups += joint.kept()
            if self._replicas == 1:
                for lookup in lookups:
                    lookup.wanted.table.prefetched(lookup, replica=0)

    def _usable(self, ahead: RowsAhead) -> Mapping[TableVariable, JointLookup]:
        """Wait for what was asked for; return what a step that begins now may use of it."""
        if ahead.done is None or not self._is_current(ahead):
            return {}
        self._correct(ahead)
        with self._store.servers.steps.pace.waiting():
            ahead.done.result()
        return ahead.found if self._is_current(ahead) else {}

    def _is_current(self, ahead: RowsAhead) -> bool:
        return self.may_ask_ahead and ahead.asked_in == self._state()

    def _state(self) -> object:
        """Return what differs once tables were changed by other things than steps."""
        servers = self._store.servers
        return self._store.table_changes, servers.snapshot, servers.runs

    @contextmanager
    def pushing(self, step: OptimizerStep) -> Iterator[None]:
        """Note the rows that a step changes, which is pushed meanwhile."""
        stepped = _stepped_by(step)
        if not stepped:
            yield
            return
        with self._changing:
            self._unfinished.append(stepped)
            for ahead in [*self._open]:
                ahead.noted += 1
                self._submit(ahead, partial(_mark, ahead, stepped))
        try:
            yield
        finally:
            with self._changing:
                finished: Stepped | None = stepped
                if self._store.pull_mode is PullMode.IN_FLIGHT:
                    # The one before was finished before this one was sent.
                    finished, self._in_flight = self._in_flight, stepped
                self._unfinished = [one for one in self._unfinished if one is not finished]

    # What the background thread does, one thing after the other.

    def _correct(self, ahead: RowsAhead) -> None:
        """Have rows asked for again that were stepped since they were."""
        if ahead.done is None or ahead.noted == ahead.corrected:
            return
        with self._changing:
            ahead.corrected = ahead.noted
            self._submit(ahead, partial(_ask_again, ahead))

    def _submit(self, ahead: RowsAhead, job: Callable[[], None]) -> None:
        threads = self._threads()
        # An interruption may go astray to a thread that is just being started.
        with uninterrupted():
            if threads is None:
                threads = ThreadPoolExecutor(1, thread_name_prefix="rows-ahead")
                self._threads = ref(threads)
            ahead.threads = threads
            ahead.done = threads.submit(job)


def _fetch(ahead: RowsAhead) -> None:
    """Read rows, but for those of tables of which a step may evict rows that it does not have.

    What fails is left to the run, which pulls it and raises what there is to raise.
    """
    with suppress(StratagemError):
        for joint in _joint([each for each in ahead.wanted if not each.table.evicts]):
            joint.read(joint.training)
            for table in {each.table for each in joint.lookups}:
                ahead.stale[table] = torch.zeros(len(joint.rows_of(table)), dtype=torch.bool)
                ahead.found[table] = joint


def _mark(ahead: RowsAhead, stepped: Stepped) -> None:
    for table in ahead.found.keys() & stepped.keys():
        stale, mine = ahead.stale[table], ahead.found[table].rows_of(table)
        for rows in stepped[table]:
            stale |= torch.tensor(True) if rows is None else _are_in(rows, mine)


def _ask_again(ahead: RowsAhead) -> None:
    try:
        again = [
            Wanted(table, table.value(), ahead.found[table].rows_of(table)[stale])
            for table, stale in ahead.stale.items()
            if stale.any()
        ]
        for joint in _joint(again):
            for lookup in joint.read(joint.training):
                table, stale = lookup.wanted.table, ahead.stale[lookup.wanted.table]
                ahead.found[table].values_of(table)[stale] = lookup.values[lookup.places]
                stale.zero_()
    except StratagemError:
        ahead.found.clear()


def _joint(wanted: Sequence[Wanted]) -> Iterator[JointLookup]:
    """Yield lookups for a training step, in tables that are trained and in others."""
    for training in (True, False):
        mine = [each for each in wanted if each.leaf.requires_grad is training]
        if mine:
            yield JointLookup(mine, training)


def _are_in(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return which of some rows are among others."""
    if not len(rows):
        return torch.zeros(len(others), dtype=torch.bool)
    ascending = rows.sort().values
    places = torch.searchsorted(ascending, others).clamp_(max=len(ascending) - 1)
    return ascending[places] == others


def _stepped_by(step: OptimizerStep) -> Stepped:
    return {
        variable: [variable.stepped_rows(gradient) for gradient in gradients]
        for group in step.groups
        for variable, gradients in zip(group.variables, group.gradients, strict=True)
        if isinstance(variable, TableVariable)
    }


class RowFetcher:
    """Asks for the rows that batches look up, as a `BatchFetcher`.

    Args:
        lookahead: Of the strategy.
        lookups: Says what a batch looks up.
        local_results: Returns the components of a value that the replicas of this process get.
    """

    def __init__(
        self,
        lookahead: TableLookahead,
        lookups: Lookups,
        local_results: Callable[[Any], Sequence[Any]],
    ) -> None:
        self._lookahead, self._lookups = lookahead, lookups
        self._local_results = local_results

    @property
    def may_ask_ahead(self) -> bool:
        """Whether rows that are asked for now may be used by a later step."""
        return self._lookahead.may_ask_ahead

    def parts_of(self, batch: Any) -> Sequence[Any]:
        """Return the part of a batch that each replica gets; the batch, if all get all of it."""
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves(batch)):
            return (batch,)
        return self._local_results(batch)

    def ask(self, parts: Sequence[Any]) -> RowsAhead:
        """Ask for the rows of a batch, of which the parts of the replicas are given.

        Raises:
            InvalidTypeError: The user's function does not return pairs of an embedding, or its
                weight, and integers.
            InvalidArgumentError: A table belongs to another strategy.
        """
        wanted: list[Wanted] = []
        for part in parts:
            for embedding, ids in _pairs(self._lookups(part)):
                table = _table(embedding)
                if table is not None:
                    require_integers(ids, table.name)
                    wanted.append(Wanted(table, table.value(), ids.detach()))
        return self._lookahead.ask(wanted)

    def present(self, owner: object, needs: RowsAhead | None) -> None:
        """Have the next run start with the rows of a batch."""
        self._lookahead.present(owner, needs)


def _pairs(returned: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(returned, Iterable) or isinstance(returned, torch.Tensor):
        raise _no_lookups(returned)
    for pair in returned:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise _no_lookups(pair)
        yield pair[0], pair[1]


def _table(embedding: Any) -> TableVariable | None:
    weight = getattr(embedding, "weight", None) if isinstance(embedding, nn.Module) else embedding
    if not isinstance(weight, torch.Tensor):
        raise _no_lookups(embedding)
    source = weight.source if isinstance(weight, TableParameter) else None
    return source if isinstance(source, TableVariable) else None


def _no_lookups(what: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"the function `rows` of strategy.lookahead gave {what!r:.100}; it has to return pairs, as "
        "stratagem.nn.prefetch takes them: an embedding or its weight, and the tensor of integers "
        "that the batch looks up in it"
    )

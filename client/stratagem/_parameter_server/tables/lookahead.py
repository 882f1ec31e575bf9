"""Rows that the next batch looks up, which come with the answer to the push of the present step.

The server reads them behind the step, in the same request, so a lone worker sees the bytes that it
would see without. Where tables are on a disk, it is told of those of the batch after that, which it
brings into memory while the worker computes.

Where steps are bounded or synchronous, what others do counts as well; there the rows are pulled
together once their run begins. So they are if another step, or anything else, has changed tables
since they came.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from stratagem._core.distributed_values import DistributedValues
from stratagem._core.nests import leaves
from stratagem._core.tensors import require_integers
from stratagem._gradients import OptimizerStep
from stratagem._input.lookahead import Lookups
from stratagem._parameter_server.hosting.push import NO_ROWS_BEHIND, PullMode, RowsBehind
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.tables.joint_lookup import JointLookup, Wanted
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.variable import TableVariable
from stratagem._ps_client.requests.reads import RowsReading
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError, StratagemError

_Readings: TypeAlias = defaultdict[int, list[RowsReading]]

_LOG = logging.getLogger("stratagem")

# So many batches one after the other whose rows no run has used show that none will.
_UNUSED_BATCHES = 3


@dataclass(eq=False)
class RowsAhead:
    """What a batch looks up.

    Attributes:
        wanted: The lookups; a table may come several times.
        found_in: What tables were like when their rows came; None before.
    """

    wanted: Sequence[Wanted]
    found_in: object = None

    @cached_property
    def joint(self) -> Sequence[JointLookup]:
        """The lookups together; to read them, call `behind_step` of each.

        Raises:
            RowIndexError: A table has no such row.
        """
        return [*_joint(self.wanted)]


class TableLookahead:
    """Has pushes bring the rows that the next runs look up.

    A `RowFetcher` calls `expect` and `present` for each batch. `behind` is called for each push,
    and `hand_over` when a run begins.

    Args:
        store: The variables on the servers.
        replicas: How many run in this process.
    """

    def __init__(self, store: RemoteStore, replicas: int) -> None:
        self._store, self._replicas = store, replicas
        # What the next push is to bring, and what it is to announce.
        self._expected: WeakSet[RowsAhead] = WeakSet()
        self._announced: WeakSet[RowsAhead] = WeakSet()
        self._are_on_disk = False
        self._presented: WeakKeyDictionary[object, RowsAhead] = WeakKeyDictionary()
        self._pushes = self._unused = 0

    @property
    def batches_ahead(self) -> int:
        """The rows of how many batches behind the present one are to be expected."""
        if not self._may_ask_ahead:
            return 0
        return 2 if self._are_on_disk else 1

    @property
    def _may_ask_ahead(self) -> bool:
        """Whether the next step may have rows as of the end of the one before.

        It may if steps wait for nobody, and the answer to a push comes before the next step begins.
        """
        store = self._store
        is_awaited = store.pull_mode is not PullMode.IN_FLIGHT
        return is_awaited and store.step_tracker.is_free() and not store.servers.snapshot

    def rows_of(self, wanted: Sequence[Wanted]) -> RowsAhead:
        """Return what a batch looks up.

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
        return RowsAhead(wanted)

    def expect(self, ahead: RowsAhead, place: int) -> None:
        """Have rows come with the next push, or be announced by it.

        Args:
            ahead: What a batch looks up, before a run does.
            place: How many batches it is behind the present one.
        """
        if ahead.wanted:
            (self._expected if place == 1 else self._announced).add(ahead)

    def present(self, owner: object, ahead: RowsAhead | None) -> None:
        """Have the next run start with rows, and with no others of their owner."""
        if self._presented.pop(owner, ahead) is not ahead:
            self._note_unused()
        if ahead is not None:
            self._presented[owner] = ahead
            self._expected.discard(ahead)

    def _note_unused(self) -> None:
        self._unused += 1
        if self._unused == _UNUSED_BATCHES:
            _LOG.warning(
                "strategy.lookahead has asked for the rows of %d batches one after the other that "
                "no strategy.run with gradients has used; call the training step by strategy.run, "
                "or leave lookahead out",
                self._unused,
            )

    def behind(self, step: OptimizerStep, servers: AbstractSet[int]) -> RowsBehind:
        """Return what a push is to read behind its step; nothing, unless that is one of tables.

        What cannot be read is left to the run, which raises what there is to raise.

        Args:
            step: The step.
            servers: Those that get gradients.
        """
        stepped = chain.from_iterable(group.variables for group in step.groups)
        if not any(isinstance(each, TableVariable) for each in stepped):
            return NO_ROWS_BEHIND
        self._pushes += 1
        if not self._may_ask_ahead:
            return NO_ROWS_BEHIND
        (readings, arriving), announced = self._reads(servers), self._announcements()

        def arrived(are_on_disk: bool) -> None:
            if arriving:
                self._are_on_disk = are_on_disk
            for each in arriving:
                each()

        return RowsBehind(readings, announced, arrived)

    def _reads(self, servers: AbstractSet[int]) -> tuple[_Readings, Sequence[Callable[[], object]]]:
        readings, arriving = _Readings(list), list[Callable[[], object]]()
        for ahead in [*self._expected]:
            with suppress(StratagemError):
                asked = [joint.behind_step() for joint in ahead.joint]
                if not all(each.keys() <= servers for each, _ in asked):
                    continue
                for server, each in chain.from_iterable(some.items() for some, _ in asked):
                    readings[server] += each
                arriving += [*[came for _, came in asked], partial(self._found, ahead)]
        return readings, arriving

    def _announcements(self) -> _Readings:
        announced = _Readings(list)
        for ahead in [*self._announced]:
            with suppress(StratagemError):
                for some, _ in [joint.behind_step() for joint in ahead.joint]:
                    for server, each in some.items():
                        announced[server] += each
        self._announced.clear()
        return announced

    def _found(self, ahead: RowsAhead) -> None:
        ahead.found_in = self._state()

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
            is_current = self._may_ask_ahead and ahead.found_in == self._state()
            if is_current:
                lookups = [one for joint in ahead.joint for one in joint.kept()]
            else:
                lookups = [one for joint in _joint(ahead.wanted) for one in joint.pulled()]
            if self._replicas == 1:
                for lookup in lookups:
                    lookup.wanted.table.prefetched(lookup, replica=0)

    def _state(self) -> object:
        """Return what differs once tables were changed since."""
        servers = self._store.servers
        return self._pushes, self._store.table_changes, servers.snapshot, servers.runs


def _joint(wanted: Sequence[Wanted]) -> Iterator[JointLookup]:
    """Yield lookups for a training step, in tables that are trained and in others."""
    for training in (True, False):
        mine = [each for each in wanted if each.leaf.requires_grad is training]
        if mine:
            yield JointLookup(mine, training)


class RowFetcher:
    """Says which rows batches look up, as a `BatchFetcher`.

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
    def batches_ahead(self) -> int:
        """The rows of how many batches behind the present one are to be asked for."""
        return self._lookahead.batches_ahead

    def parts_of(self, batch: Any) -> Sequence[Any]:
        """Return the part of a batch that each replica gets; the batch, if all get all of it."""
        if not any(isinstance(leaf, DistributedValues) for leaf in leaves(batch)):
            return (batch,)
        return self._local_results(batch)

    def ask(self, parts: Sequence[Any]) -> RowsAhead:
        """Return the rows of a batch, of which the parts of the replicas are given.

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
        return self._lookahead.rows_of(wanted)

    def expect(self, needs: RowsAhead, place: int) -> None:
        """Have rows come before their run begins."""
        self._lookahead.expect(needs, place)

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

"""Lookups in several tables, which pull their rows and add up their gradients together.

Ids are made distinct once, by one sort for all tables. The order that this gives, by table, part of
the table and row of the part, is the order of the rows that servers are asked for, of the memory
that the rows come into, of the sums of gradients and of what is pushed. So a table costs some
slices of joint memory; a sort, a search and a sum of its own took most of a step of 26 tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.function import once_differentiable

from stratagem._parameter_server.tables.lookup import as_sparse
from stratagem._parameter_server.variables.shards import RowCoding
from stratagem._ps_client.requests.reads import RowsReading
from stratagem_proto.division import part_of_keys
from stratagem_proto.rows import Sorted, sorted_integers

if TYPE_CHECKING:
    from stratagem._parameter_server.tables.variable import TableVariable
    from stratagem._parameter_server.variables.variable import ValuesOfRows

_Integers: TypeAlias = npt.NDArray[np.int64]


class Wanted(NamedTuple):
    """One lookup.

    Attributes:
        table: The table.
        leaf: The parameter that stands for it in this replica, which gets the gradient.
        ids: Rows or keys; an integer tensor of any shape, on any device.
    """

    table: TableVariable
    leaf: torch.Tensor
    ids: torch.Tensor


class SummedGradient(NamedTuple):
    """The gradient of a table in the joint order, as autograd was given it.

    Attributes:
        indices: The rows of the parameter, int64 (1, n).
        values: Their gradients, (n, *row).
        rows: For each part of the table, which of its rows have gradients.
    """

    indices: torch.Tensor
    values: torch.Tensor
    rows: Sequence[torch.Tensor]

    def is_memory_of(self, gradient: torch.Tensor) -> bool:
        """Return whether a sparse gradient has this memory, whose numbers may have been changed."""
        indices, values = gradient._indices(), gradient._values()
        return (
            values.data_ptr() == self.values.data_ptr()
            and indices.data_ptr() == self.indices.data_ptr()
            and values.shape == self.values.shape
            and values.is_contiguous()
        )

    def shares(self) -> Sequence[ValuesOfRows]:
        """Return what goes to each part: values, and rows of the part."""
        values = self.values.split([len(rows) for rows in self.rows])
        return list(zip(values, self.rows, strict=True))


class Lookup(NamedTuple):
    """One lookup, once its rows are here.

    Attributes:
        joint: What it is part of.
        number: Its number there.
        wanted: What is looked up.
        outputs: Those of all lookups, once one was asked for. They refer to the joint lookup, which
            therefore does not refer to them: a graph has to go when a program drops it.
    """

    joint: JointLookup
    number: int
    wanted: Wanted
    outputs: list[torch.Tensor]

    def is_of(self, leaf: torch.Tensor, ids: torch.Tensor, training: bool) -> bool:
        """Return whether this is what a program looks up."""
        is_alike = leaf is self.wanted.leaf and training == self.joint.training
        return is_alike and self.joint.has_ids(self.number, ids)

    def output(self) -> torch.Tensor | None:
        """Return the values of the ids, (*ids.shape, *row), differentiable; call it once.

        None in a table with keys. Its gradient goes by numbers of keys, which are to be kept no
        longer than what torch saves of each lookup.
        """
        if self.wanted.table.has_keys:
            return None
        if not self.outputs:
            self.outputs.extend(self.joint.outputs())
        return self.outputs[self.number]

    @property
    def rows(self) -> torch.Tensor:
        """The distinct rows or keys, int64."""
        return self.joint.rows_of(self.wanted.table)

    @property
    def values(self) -> torch.Tensor:
        """Their values, on the CPU."""
        return self.joint.values_of(self.wanted.table)

    @property
    def places(self) -> torch.Tensor:
        """Where among them each id is; of the shape and on the device of the ids."""
        return self.joint.places_of(self.number)


@dataclass(frozen=True)
class _Group:
    """Lookups in tables whose rows are of one kind and have no keys.

    Attributes:
        numbers: The lookups, which follow each other.
        ids: Where their ids stand among all.
        begin: Where their rows begin among all distinct ones.
        values: The values of the rows, on the CPU.
    """

    numbers: range
    ids: slice
    begin: int
    values: torch.Tensor


class JointLookup:
    """Lookups of one replica in one run; `pulled` is called once.

    Args:
        lookups: What is looked up. A table may come several times, with one leaf.
        training: Whether gradients are wanted.

    Attributes:
        lookups: The lookups, ordered by the kinds of rows.
        training: As the argument.

    Raises:
        RowIndexError: A table has no such row.
    """

    def __init__(self, lookups: Sequence[Wanted], training: bool) -> None:
        kinds = {each.table.row_kind: number for number, each in enumerate(lookups)}
        # Tables with keys come last.
        self.lookups = sorted(
            lookups, key=lambda each: (each.table.has_keys, kinds[each.table.row_kind])
        )
        self.training = training
        ends = np.cumsum([each.ids.numel() for each in self.lookups]).tolist()
        self._slices = [slice(*each) for each in pairwise([0, *ends])]
        self._ids = np.concatenate([_as_vector(each.ids) for each in self.lookups])
        self._tables = list(dict.fromkeys(each.table for each in self.lookups))
        codes = _Codes(self._tables)
        self._order: Sorted = sorted_integers(codes.encoded(self.lookups, self._ids, self._slices))
        self._places = self._order.places()
        rows, rows_of_parts, cuts = codes.decoded(self._order.distinct)
        self._cuts = dict(zip(self._tables, cuts, strict=True))
        counts = [each[-1] - each[0] for each in cuts]
        self._rows: dict[TableVariable, torch.Tensor] = dict(
            zip(self._tables, rows.split(counts), strict=True)
        )
        parts = iter(rows_of_parts.split([b - a for each in cuts for a, b in pairwise(each)]))
        self._rows_of_parts = {table: [next(parts) for _ in table.parts] for table in self._tables}
        self._values: dict[TableVariable, torch.Tensor] = {}
        self._groups = list(self._grouped())

    def _grouped(self) -> Iterator[_Group]:
        kinds, first = [each.table.row_kind for each in self.lookups], 0
        while first < len(kinds):
            stop = first + kinds[first:].count(kinds[first])
            tables = list(dict.fromkeys(each.table for each in self.lookups[first:stop]))
            counts = [len(self._rows[table]) for table in tables]
            has_keys, shape, dtype = kinds[first]
            values = torch.empty(sum(counts), *shape, dtype=dtype)
            self._values |= zip(tables, values.split(counts), strict=True)
            ids = slice(self._slices[first].start, self._slices[stop - 1].stop)
            if not has_keys:
                yield _Group(range(first, stop), ids, self._cuts[tables[0]][0], values)
            first = stop

    def has_ids(self, number: int, ids: torch.Tensor) -> bool:
        """Return whether a lookup has these ids, which may have been written since."""
        known = self.lookups[number].ids
        if known.shape != ids.shape or known.device != ids.device:
            return False
        return np.array_equal(self._ids[self._slices[number]], _as_vector(ids))

    # Pulling.

    def pulled(self) -> Sequence[Lookup]:
        """Bring the rows as the run first looked each up, and return the lookups."""
        self._keep(reads=True)
        return self._found()

    def read(self) -> Sequence[Lookup]:
        """Bring the rows as they are now, unrounded and kept by no run; return the lookups."""
        self._read(self._tables, rounded=False)
        return self._found()

    def behind_step(self) -> tuple[Mapping[int, Sequence[RowsReading]], Callable[[], None]]:
        """Return what to read in a push for the step behind it, and what to call once it came.

        That step's run then calls `kept`.
        """
        parts, rows, into = self._reads_of_parts(self._tables)
        asked = self._tables[0].store.asked_rows(parts, rows, self.training)

        def came() -> None:
            # torch refuses to copy nothing.
            if into:
                torch._foreach_copy_(into, [*asked.found])

        return asked.readings, came

    def kept(self) -> Sequence[Lookup]:
        """Have a run keep rows that were pulled before it, and return the lookups.

        Rows that it has looked up already stay as it did.
        """
        self._keep(reads=False)
        return self._found()

    def _found(self) -> Sequence[Lookup]:
        outputs = list[torch.Tensor]()
        return [Lookup(self, n, each, outputs) for n, each in enumerate(self.lookups)]

    def _keep(self, reads: bool) -> None:
        with ExitStack() as pulling:
            # One order for all threads, which wait for each other.
            for table in sorted(self._tables, key=lambda table: table.name):
                pulling.enter_context(table.pulling)
            # Not a list, which would compare what they contain.
            fresh = {table for table in self._tables if table.pulled.is_empty}
            if reads:
                self._read([table for table in self._tables if table in fresh], self.training)
            for table, values in self._values.items():
                if table in fresh:
                    table.pulled.add(self._rows[table], values)
                else:
                    values.copy_(table.pulled_or_missing(self._rows[table], self.training))

    def _read(self, tables: Sequence[TableVariable], rounded: bool) -> None:
        parts, rows, into = self._reads_of_parts(tables)
        if parts:
            torch._foreach_copy_(into, [*self._tables[0].store.rows(parts, rows, rounded)])

    def _reads_of_parts(
        self, tables: Sequence[TableVariable]
    ) -> tuple[list[Any], list[torch.Tensor], list[torch.Tensor]]:
        """Return parts of tables, the rows to read of each, and the memory that they belong into.

        Parts without such rows are left out.
        """
        parts, rows, into = list[Any](), list[torch.Tensor](), list[torch.Tensor]()
        for table in tables:
            of_parts = self._rows_of_parts[table]
            memory = self._values[table].split([len(each) for each in of_parts])
            for part, wanted, values in zip(table.parts, of_parts, memory, strict=True):
                if len(wanted):
                    parts.append(part)
                    rows.append(wanted)
                    into.append(values)
        return parts, rows, into

    # What lookups find.

    def rows_of(self, table: TableVariable) -> torch.Tensor:
        """Return the distinct rows or keys of a table."""
        return self._rows[table]

    def values_of(self, table: TableVariable) -> torch.Tensor:
        """Return their values, on the CPU."""
        return self._values[table]

    def places_of(self, number: int) -> torch.Tensor:
        """Return where among them each id of a lookup is; of the shape of the ids."""
        table, _, ids = self.lookups[number]
        places = self._places[self._slices[number]] - self._cuts[table][0]
        return torch.from_numpy(places).view(ids.shape).to(ids.device)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Return the values of the ids of all lookups without keys, differentiable."""
        if not self.training:
            return self.gathered()
        leaves = [each.leaf for each in self.lookups if not each.table.has_keys]
        found: tuple[torch.Tensor, ...] = _Outputs.apply(self, *leaves)  # type: ignore[no-untyped-call] # of torch
        return found

    # Autograd.

    def gathered(self) -> tuple[torch.Tensor, ...]:
        """Return the values of the ids of all lookups without keys."""
        found = []
        for group in self._groups:
            moved: dict[torch.device, torch.Tensor] = {}
            places = torch.from_numpy(self._places[group.ids] - group.begin)
            lengths = [self.lookups[number].ids.numel() for number in group.numbers]
            for number, mine in zip(group.numbers, places.split(lengths), strict=True):
                ids = self.lookups[number].ids
                if ids.device not in moved:
                    moved[ids.device] = group.values.to(ids.device)
                # Not a view, since programs may write outputs.
                found.append(
                    torch.embedding(moved[ids.device], mine.view(ids.shape).to(ids.device))
                )
        return tuple(found)

    def gradients(self, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of the leaves, given those of the outputs that were used."""
        found: list[torch.Tensor | None] = [None] * len(given)
        for group in self._groups:
            row = group.values.shape[1:]
            used = {n: one.cpu() for n in group.numbers if (one := given[n]) is not None}
            if len(used) < len(group.numbers):
                for number, one in used.items():
                    rows = self._rows[self.lookups[number].table]
                    places = self.places_of(number).flatten().cpu()
                    shape = self.lookups[number].leaf.shape
                    found[number] = as_sparse(rows[places], one.reshape(-1, *row), shape)
                continue
            values = torch.cat([one.reshape(-1, *row) for one in used.values()])
            sums = self._order.part(group.ids).summed(values)
            self._hand_out(group, sums, found)
        return found

    def _hand_out(
        self, group: _Group, sums: torch.Tensor, found: list[torch.Tensor | None]
    ) -> None:
        firsts = {self.lookups[number].table: number for number in reversed(group.numbers)}
        for table, number in firsts.items():
            # Of a table that comes several times, the leaf gets all with the first lookup.
            cuts = self._cuts[table]
            values = sums[cuts[0] - group.begin : cuts[-1] - group.begin]
            indices = self._rows[table].unsqueeze(0)
            table.summed = SummedGradient(indices, values, self._rows_of_parts[table])
            found[number] = torch.sparse_coo_tensor(
                indices, values, self.lookups[number].leaf.shape, check_invariants=False
            )


class _Outputs(torch.autograd.Function):
    """The outputs of a joint lookup, as functions of the tables' parameters.

    Nothing is saved in the way of torch, so that outputs may be in several graphs, with a backward
    pass each.
    """

    @staticmethod
    def forward(ctx: Any, joint: JointLookup, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.joint = joint
        ctx.set_materialize_grads(False)
        return joint.gathered()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: torch.Tensor | None) -> tuple[Any, ...]:
        return None, *ctx.joint.gradients(given)


class _Codes:
    """One number for each row of several tables, in the joint order.

    Args:
        tables: The tables.
    """

    def __init__(self, tables: Sequence[TableVariable]) -> None:
        self._tables = tables
        self._bases: dict[TableVariable, int] = {}
        self._keys: dict[TableVariable, _Keys] = {}

    def encoded(
        self, lookups: Sequence[Wanted], ids: _Integers, slices: Sequence[slice]
    ) -> _Integers:
        """Return the number of each id.

        Args:
            lookups: The lookups.
            ids: All their ids.
            slices: Where the ids of each lookup are.

        Raises:
            RowIndexError: A table has no such row.
        """
        base = 0
        for table in self._tables:
            self._bases[table] = base
            coding = table.layout.coding
            if coding is None:
                mine = [at for each, at in zip(lookups, slices, strict=True) if each.table is table]
                self._keys[table] = _Keys(np.concatenate([ids[at] for at in mine]), table)
                base += len(self._keys[table].rows)
            else:
                base += coding.end
        codings = [each.table.layout.coding or _ANY for each in lookups]
        lengths = [at.stop - at.start for at in slices]
        totals = np.repeat(np.array([each.total for each in codings], np.uint64), lengths)
        # Negative ids are larger than all others as unsigned numbers.
        if (ids.view(np.uint64) >= totals).any():
            self._refuse(lookups, ids, slices)
        codes: _Integers = ids + np.repeat([self._bases[each.table] for each in lookups], lengths)
        if any(coding.modulus > 1 for coding in codings):
            modulus = np.repeat([coding.modulus for coding in codings], lengths)
            stride = np.repeat([coding.stride for coding in codings], lengths)
            rows, parts = np.divmod(ids, modulus)
            codes += rows + parts * stride - ids
        given = dict.fromkeys(self._keys, 0)
        for each, at in zip(lookups, slices, strict=True):
            if (keys := self._keys.get(each.table)) is not None:
                done, count = given[each.table], at.stop - at.start
                codes[at] = keys.places[done : done + count] + self._bases[each.table]
                given[each.table] = done + count
        return codes

    def _refuse(self, lookups: Sequence[Wanted], ids: _Integers, slices: Sequence[slice]) -> None:
        for each, at in zip(lookups, slices, strict=True):
            each.table.require_rows(torch.from_numpy(np.unique(ids[at])))

    def decoded(
        self, codes: _Integers
    ) -> tuple[torch.Tensor, torch.Tensor, Sequence[Sequence[int]]]:
        """Return what distinct, ascending numbers stand for.

        Returns:
            The rows of each table; the rows of each part, counted within the part; and for each
            table, where the rows of its parts begin and where those of the last one end.
        """
        starts, moduli, firsts, counts = [], list[int](), list[int](), list[int]()
        for table in self._tables:
            base, coding = self._bases[table], table.layout.coding
            found = self._keys[table].coding if coding is None else coding
            starts += [base + start for start in found.starts]
            moduli += [found.modulus] * len(found.starts)
            firsts += found.firsts
            counts.append(len(found.starts))
        cuts = np.searchsorted(codes, starts).tolist()
        cuts.append(len(codes))
        lengths = np.diff(cuts)
        of_parts = codes - np.repeat(starts, lengths)
        rows = of_parts * np.repeat(moduli, lengths) + np.repeat(firsts, lengths)
        ends = np.cumsum([0, *counts]).tolist()
        spans = [cuts[first : last + 1] for first, last in pairwise(ends)]
        for table, span in zip(self._tables, spans, strict=True):
            if (keys := self._keys.get(table)) is not None:
                rows[span[0] : span[-1]] = of_parts[span[0] : span[-1]] = keys.rows
        return torch.from_numpy(rows), torch.from_numpy(of_parts), spans


class _Keys:
    """The distinct keys of a table without a vocabulary, by its parts.

    Attributes:
        rows: The keys.
        places: Where among them each of the given keys is.
        coding: What a vocabulary of them would have.
    """

    def __init__(self, given: _Integers, table: TableVariable) -> None:
        order = sorted_integers(given)
        keys, parts = order.distinct, len(table.parts)
        part = part_of_keys(torch.from_numpy(keys), parts).numpy()
        by_part = np.argsort(part, kind="stable")
        self.rows: _Integers = keys[by_part]
        after = np.empty_like(by_part)
        after[by_part] = np.arange(len(keys))
        self.places: _Integers = after[order.places()]
        starts = np.searchsorted(part[by_part], np.arange(parts)).tolist()
        self.coding = RowCoding(len(keys), len(keys), 1, 0, starts, starts)


_ANY = RowCoding((1 << 64) - 1, 0, 1, 0, (), ())
"""Of tables whose rows may have any key."""


def _as_vector(ids: torch.Tensor) -> _Integers:
    vector: _Integers = ids.detach().reshape(-1).to("cpu", torch.int64).numpy()
    return vector

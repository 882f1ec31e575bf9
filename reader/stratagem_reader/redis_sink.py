"""Writing what a source publishes to a Redis, each version all at once."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import torch

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StratagemError,
    SupersededError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from stratagem_proto.v1.checkpoint_pb2 import SavedPart
from stratagem_proto.wire.tensors import as_bytes, decode_dtype, int64_vector
from stratagem_reader.changes import Change, KeyedChange, all_changes
from stratagem_reader.replica import DenseValue, forms_of, require_kept
from stratagem_reader.sink import require_same_training
from stratagem_reader.source import Source, Version
from stratagem_reader.turns import Turn
from stratagem_storage.checkpoint.entries import KEYS, FileEntry, TensorEntry, TensorFile
from stratagem_storage.checkpoint.index import Index
from stratagem_storage.checkpoint.wholes import TablePart, Whole, WholeTable, wholes_of

FORMAT = 1
"""The form of what is in a Redis that this release reads and writes."""

PASSWORD = "STRATAGEM_REDIS_PASSWORD"
"""The variable of the environment that has the password, which others could see in a URL."""

SCHEMES = ("redis://", "rediss://", "unix://")

_CONNECT_SECONDS = 5.0
_CALL_SECONDS = 60.0

# While a transaction is carried out, Redis answers nobody else: 0.1 s for so many rows. What is
# more, and much of all there is, is written beside, and then renamed.
_MOST_ROWS_AT_ONCE = 100_000
_MOST_SHARE_AT_ONCE = 1 / 8

# What Redis takes as one value, unless it is told otherwise.
_MOST_VALUE_BYTES = 512 << 20

_FIELDS_OF_CALL = 1024
_BYTES_OF_CALL = 1 << 20

# The keys of a table's positions are kept so many to a field.
_KEYS_OF_FIELD = 64


@dataclass(frozen=True)
class _Present:
    """What a Redis has.

    Attributes:
        version: The version; None for none.
        entries: The tensors of the servers' parts, whose rows are told by their positions.
        wholes: The variables that these make.
        keys: The key at each position, by part of a table.
        dense: The other variables.
        is_intact: Whether increments can be added to it.
    """

    version: Version | None
    entries: Mapping[str, TensorEntry]
    wholes: Mapping[str, Whole]
    keys: dict[str, torch.Tensor]
    dense: Mapping[str, DenseValue]
    is_intact: bool = True

    @classmethod
    def of(cls, version: Version, entries: Mapping[str, TensorEntry]) -> _Present:
        """Return what a version consists of, without its keys and values."""
        wholes = wholes_of(Index({}, entries))
        dense = {
            name: DenseValue(whole)
            for name, whole in wholes.items()
            if not isinstance(whole, WholeTable)
        }
        return cls(version, entries, wholes, {}, dense)

    @property
    def tables(self) -> list[WholeTable]:
        return [whole for whole in self.wholes.values() if isinstance(whole, WholeTable)]

    @property
    def pieces(self) -> dict[str, torch.Tensor]:
        """The tensors of the servers' parts that are no tables."""
        found = [value.pieces for value in self.dense.values()]
        return {name: piece for pieces in found for name, piece in pieces.items()}

    @property
    def number(self) -> int:
        return 0 if self.version is None else self.version.number


class RedisSink:
    """Keeps the latest version of a source in a Redis, for programs that know nothing of this.

    Each table is a hash, whose fields are keys as decimal numbers and whose values are the bytes of
    rows, little-endian; each other variable is a string of bytes. A hash says which version it is,
    and what the bytes are. A version is put in place by one transaction: one that changes much is
    first written beside, under other names. One that is begun again goes on with what is there.

    Of two that write to the same names, the one that began later goes on as long as it is there.

    Args:
        source: What to follow.
        url: "redis://host:port/db", "rediss://..." or "unix://path?db=0". With `prefix=films` among
            the options behind a "?", names begin with "films:" in place of "stratagem:". The
            password may be in the environment, as STRATAGEM_REDIS_PASSWORD.

    Attributes:
        name: What messages call it: the URL without a password and options.

    Raises:
        FailedPreconditionError: The package redis is not installed.
        InvalidArgumentError: The URL is none of these.
    """

    def __init__(self, source: Source, url: str) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        options = dict(parse_qsl(parts.query))
        self._prefix = options.pop("prefix", "stratagem")
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise FailedPreconditionError(
                f"{self.name!r} needs the package redis; run `pip install 'stratagem[redis]'`"
            ) from error
        try:
            self._client: Any = redis.Redis.from_url(
                url.partition("?")[0] + "?" + urlencode(options),
                socket_timeout=_CALL_SECONDS,
                socket_connect_timeout=_CONNECT_SECONDS,
                password=os.environ.get(PASSWORD),
                # Whoever calls tries again, and says so.
                retry=Retry(NoBackoff(), 1),
            )
            if "decode_responses" in options:
                raise ValueError("values are bytes, and are not decoded")
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(
                f"{self.name!r} is no URL of a Redis: {error}; give redis://HOST:PORT/DB, "
                "rediss://HOST:PORT/DB or unix://PATH"
            ) from error
        self._errors = redis.exceptions
        self._source = source
        self._about, self._staged = f"{self._prefix}:version", f"{self._prefix}:staged"
        self._writer = secrets.token_hex(8)
        turn, client = f"{self._prefix}:turn", self._client
        self._turn = Turn(partial(client.set, turn), partial(client.get, turn))
        self._has_begun = False
        self._present: _Present | None = None

    def close(self) -> None:
        """End the connections to Redis."""
        self._turn.lose()
        self._client.close()

    def write_next(self, wait_seconds: float) -> list[Version]:
        """Write what has come since the last call; return the version that was written.

        Args:
            wait_seconds: How long to wait for a version.

        Raises:
            UnavailableError: Redis cannot be reached, or the source.
            SupersededError: Another one writes to these names since. Call it again: this one goes
                on once that one is gone.
            DifferentTrainingError: Redis has versions of another training.
            FailedPreconditionError: A later release wrote what it has, or another program.
            StratagemError: The source cannot be followed, or Redis refuses.
        """
        with self._explained():
            present = self._present = self._present or self._begin()
            after = present.version if present.is_intact else None
            version = self._source.latest(after, wait_seconds)
            if version is None:
                return []
            self._require_same(present, version)
            if after is not None:
                try:
                    return [self._take(version, present, after)]
                except (NotFoundError, DataLossError):
                    pass
            return [self._take(version, present, None)]

    def _require_same(self, present: _Present, version: Version) -> None:
        if present.version is None:
            return
        require_same_training(
            present.version, version, self.name, self._source.name, "Redis, or add ?prefix=NAME"
        )
        if version.number < present.number:
            raise FailedPreconditionError(
                f"{self.name!r} has version {present.number}, and {self._source.name!r} has "
                f"version {version.number}; write to another Redis or prefix"
            )

    # What comes.

    def _take(self, version: Version, present: _Present, since: Version | None) -> Version:
        reached, chains = self._source.chains(version, since)
        before = {} if since is None else present.entries
        values = {} if since is None else present.pieces
        changes, _ = all_changes(reached, chains, before, values)
        entries = {name: one.entry_of_whole for name, one in changes.items()}
        is_whole = since is None or forms_of(entries) != forms_of(present.entries)
        if not is_whole and self._is_much(changes):
            is_whole = True
        if is_whole and since is not None:
            return self._take(version, present, None)
        after = _Present.of(reached, entries)
        for name, dense in after.dense.items():
            if dense.value.nbytes > _MOST_VALUE_BYTES:
                raise UnimplementedError(
                    f"{name!r} has {dense.value.nbytes} bytes, and a value in Redis may have "
                    f"{_MOST_VALUE_BYTES}; follow it by stratagem.Reader",
                    variable=name,
                )
        if present.version is not None:
            for name, whole in present.wholes.items():
                form = isinstance(whole, WholeTable), whole.shape, whole.dtype
                require_kept(name, form, after.wholes.get(name), "add ?prefix=NAME to the URL")
        if is_whole:
            self._put_whole(present, after, changes)
        else:
            self._put_increment(present, replace(after, dense=present.dense), changes)
        return reached

    def _is_much(self, changes: Mapping[str, Change]) -> bool:
        tables = [one for name, one in changes.items() if name + KEYS in changes]
        changed = sum(len(one.values) for one in tables)
        count = sum(one.count for one in tables)
        return changed > max(_MOST_ROWS_AT_ONCE, count * _MOST_SHARE_AT_ONCE)

    def _put_increment(
        self, present: _Present, after: _Present, changes: Mapping[str, Change]
    ) -> None:
        found = [
            (self._rows(table), KeyedChange.of(part, present.keys[part.entry.name], changes))
            for table in after.tables
            for part in table.parts
        ]
        after.keys.update({one.part.entry.name: one.positions for _, one in found})
        with self._changing() as pipe:
            names = [*map(self._rows, present.tables), *map(self._value, present.dense)]
            self._watch(pipe, present, names)
            self._require_all_there(pipe, present)
            for name, one in found:
                self._complete(pipe, name, one)
            commits = {name: value.writes(changes) for name, value in after.dense.items()}
            written = [name for name, some in commits.items() if some]
            for commit in chain.from_iterable(commits.values()):
                commit()
            pipe.multi()
            for name, one in found:
                for keys in _runs(one.gone, 8):
                    pipe.execute_command("HDEL", name, *keys)
                _queue_rows(pipe, name, one)
                _queue_positions(pipe, self._keys(one.part), one)
            for name in written:
                pipe.set(self._value(name), bytes(as_bytes(after.dense[name].value)))
            self._describe(pipe, after)
            pipe.execute()
        self._present = after

    def _complete(self, pipe: Any, name: str, one: KeyedChange) -> None:
        """Fill in rows whose bytes another key had, and check that no key is added twice.

        Raises:
            DataLossError: One is, or there are no such bytes.
        """
        for keys in _runs(one.added, one.row_nbytes):
            if any(each is not None for each in pipe.hmget(name, keys)):
                raise one.unsound("a key twice")
        done = len(one.rows) - len(one.moved_from)
        for keys in _runs(one.moved_from, one.row_nbytes):
            data = b"".join(each or b"" for each in pipe.hmget(name, keys))
            if len(data) != len(keys) * one.row_nbytes:
                raise DataLossError(f"{name!r} of {self.name!r} lacks rows that it had")
            as_bytes(one.rows[done : done + len(keys)])[:] = data
            done += len(keys)

    def _put_whole(self, present: _Present, after: _Present, changes: dict[str, Change]) -> None:
        """Write all beside what is there, in pieces, then rename it."""
        staged: dict[str, str] = {}
        nothing = torch.empty(0, dtype=torch.int64)
        try:
            for table in after.tables:
                name = self._rows(table)
                beside = staged[name] = self._beside(name)
                for part in table.parts:
                    one = KeyedChange.of(part, nothing, changes)
                    after.keys[part.entry.name] = one.positions
                    keys = staged[self._keys(part)] = self._beside(self._keys(part))
                    with self._client.pipeline(transaction=False) as pipe:
                        _queue_rows(pipe, beside, one, sends=True)
                        _queue_positions(pipe, keys, one, sends=True)
            for name, value in after.dense.items():
                value.begin(changes)
                beside = staged[self._value(name)] = self._beside(self._value(name))
                self._client.set(beside, bytes(as_bytes(value.value)))
            self._switch(present, after, staged)
        except BaseException:
            with suppress(self._errors.RedisError):
                self._drop(staged.values())
            raise

    def _beside(self, name: str) -> str:
        beside = f"{self._staged}:{self._writer}:{name}"
        self._client.sadd(self._staged, beside)
        self._client.unlink(beside)
        return beside

    def _switch(self, present: _Present, after: _Present, staged: Mapping[str, str]) -> None:
        gone = {self._value(name) for name in present.dense} | {*staged}
        for table in present.tables:
            gone |= {self._rows(table), *map(self._keys, table.parts)}
        with self._changing() as pipe:
            self._watch(pipe, present, [*staged.values()])
            self._require_all_there(pipe, after, staged)
            # A table without rows is no hash.
            there = [name for name, beside in staged.items() if pipe.exists(beside)]
            pipe.multi()
            # Unlinked, a large hash takes no time now.
            pipe.unlink(self._staged, self._about, *gone)
            for name in there:
                pipe.rename(staged[name], name)
            self._describe(pipe, after)
            pipe.execute()
        self._present = after

    # What is in Redis.

    def _begin(self) -> _Present:
        """Return what is there, and write to it from now on; later ones end this one.

        Raises:
            SupersededError: Another one has begun since this one has.
        """
        with self._client.pipeline() as pipe:
            pipe.watch(self._about)
            about: dict[bytes, bytes] = pipe.hgetall(self._about)
            kept = self._kept(about)
            writer = about.get(b"writer", b"").decode()
            others = writer not in ("", self._writer)
            if self._has_begun and others and not self._turn.has_come():
                raise self._superseded()
            pipe.multi()
            pipe.hset(self._about, mapping={"format": FORMAT, "writer": self._writer})
            pipe.execute()
        self._has_begun = True
        self._turn.take()
        left = [each.decode() for each in self._client.smembers(self._staged)]
        self._drop(left)
        return self._with_values(kept) if kept.is_intact else kept

    def _kept(self, about: Mapping[bytes, bytes]) -> _Present:
        """Return what the description says that there is.

        Raises:
            FailedPreconditionError: A later release has written it, or another program.
        """
        where = f"{self._about!r} of {self.name!r}"
        nothing = _Present(None, {}, {}, {}, {}, is_intact=False)
        if not about:
            return nothing
        try:
            made = int(about[b"format"])
            if made > FORMAT:
                raise FailedPreconditionError(
                    f"{where} has format {made}; this release of stratagem writes format {FORMAT}; "
                    "install a later one, or add ?prefix=NAME to the URL"
                )
            if b"version" not in about:
                return nothing
            version = Version(
                int(about[b"version"]),
                bytes.fromhex(about[b"cut"].decode()),
                int(about[b"published_at"]) / 1000,
                bytes.fromhex(about[b"training"].decode()),
            )
            file = TensorFile.decoded(SavedPart.FromString(about[b"parts"]))
            return _Present.of(version, {entry.name: entry for entry in file.tensors})
        except StratagemError:
            raise
        except Exception as error:
            raise FailedPreconditionError(
                f"{where} was not written by stratagem; add ?prefix=NAME to the URL, or remove it"
            ) from error

    def _with_values(self, kept: _Present) -> _Present:
        """Return what there is with its keys and dense values; not intact if they are not."""
        for part in [part for table in kept.tables for part in table.parts]:
            keys = torch.empty(part.count, dtype=torch.int64)
            fields = torch.arange(-(-part.count // _KEYS_OF_FIELD))
            for some in _runs(fields, _KEYS_OF_FIELD * 8):
                found = self._client.hmget(self._keys(part), some)
                data = b"".join(each or b"" for each in found)
                begin = some[0] * _KEYS_OF_FIELD
                mine = keys[begin : begin + len(some) * _KEYS_OF_FIELD]
                if len(data) < mine.nbytes:
                    return replace(kept, is_intact=False)
                mine.copy_(int64_vector(data[: mine.nbytes]))
            kept.keys[part.entry.name] = keys
        for name, dense in kept.dense.items():
            data = self._client.get(self._value(name)) or b""
            if len(data) != dense.value.nbytes:
                return replace(kept, is_intact=False)
            as_bytes(dense.value)[:] = data
        return kept

    def _require_all_there(
        self, pipe: Any, present: _Present, names: Mapping[str, str] | None = None
    ) -> None:
        """Check how much is there: Redis may drop what is not read, and others may write to it.

        Raises:
            DataLossError: It is not what was written.
        """
        names = names or {}
        for table in present.tables:
            name = self._rows(table)
            count = pipe.hlen(names.get(name, name))
            if count != table.count:
                raise DataLossError(
                    f"{name!r} of {self.name!r} has {count} rows where {table.count} were written; "
                    "let Redis evict nothing, and no other program write there"
                )
        for each, dense in present.dense.items():
            name = self._value(each)
            if pipe.strlen(names.get(name, name)) != dense.value.nbytes:
                raise DataLossError(f"{name!r} of {self.name!r} is not as it was written")

    @contextmanager
    def _changing(self) -> Iterator[Any]:
        """Begin a transaction; if it fails, what there is in Redis is read anew."""
        try:
            with self._client.pipeline() as pipe:
                yield pipe
        except BaseException:
            self._present = None
            raise

    def _watch(self, pipe: Any, present: _Present, names: Sequence[str]) -> None:
        """Have the transaction fail if anything of that changes meanwhile.

        Raises:
            SupersededError: Another one writes there since.
            UnavailableError: Redis has another version, such as a replica that was behind.
        """
        pipe.watch(self._about, *names)
        writer, number = pipe.hmget(self._about, "writer", "version")
        if writer is not None and writer.decode() != self._writer:
            raise self._superseded()
        if writer is None or int(number or 0) != present.number:
            raise UnavailableError(f"{self.name!r} has lost what was written to it")

    def _superseded(self) -> SupersededError:
        self._turn.lose()
        return SupersededError(
            f"another `stratagem follow` writes to {self._prefix!r} of {self.name!r} since, and "
            f"this one would once that is silent for {self._turn.silent_seconds:g} s; let one do "
            "so, or add ?prefix=NAME to the URL"
        )

    def _describe(self, pipe: Any, after: _Present) -> None:
        version = after.version
        assert version is not None
        facts: dict[str, str | int | bytes] = {
            "format": FORMAT,
            "writer": self._writer,
            "version": version.number,
            "cut": version.cut.hex(),
            "published_at": int(version.published * 1000),
            "training": version.training.hex(),
            "parts": TensorFile("", FileEntry(0, None), [*after.entries.values()])
            .encoded()
            .SerializeToString(),
        }
        for name, whole in after.wholes.items():
            about: dict[str, Any] = {"dtype": str(whole.dtype).removeprefix("torch.")}
            if isinstance(whole, WholeTable):
                stored = whole.parts[0].entry.tensor
                about["dtype"] = str(decode_dtype(stored.dtype)).removeprefix("torch.")
                about |= {"shape": [*stored.shape[1:]], "rows": whole.count}
                facts[f"table:{name}"] = json.dumps(about)
            else:
                facts[f"value:{name}"] = json.dumps(about | {"shape": [*whole.shape]})
        pipe.hset(self._about, mapping=facts)

    def _rows(self, table: Whole) -> str:
        return f"{self._prefix}:rows:{table.name}"

    def _value(self, name: str) -> str:
        return f"{self._prefix}:value:{name}"

    def _keys(self, part: TablePart) -> str:
        return f"{self._prefix}:keys:{part.entry.name}"

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._client.unlink(name)
            self._client.srem(self._staged, name)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Make errors of Redis ours; what there is in Redis is then read anew."""
        errors = self._errors
        try:
            yield
        except errors.RedisError as error:
            self._present = None
            what = f"{self.name!r}: {error}"
            if isinstance(error, errors.AuthenticationError):
                raise UnauthenticatedError(
                    f"{what}; give the password in {PASSWORD}, and the user in the URL"
                ) from error
            if isinstance(error, errors.NoPermissionError):
                raise PermissionDeniedError(
                    f"{what}; let its user use all commands on {self._prefix}:*"
                ) from error
            if isinstance(error, errors.WatchError):
                raise UnavailableError(f"{self.name!r} was changed meanwhile") from error
            if isinstance(
                error, errors.ConnectionError | errors.TimeoutError | errors.ReadOnlyError
            ):
                raise UnavailableError(f"{self.name!r} cannot be reached: {error}") from error
            if isinstance(error, errors.OutOfMemoryError):
                raise ResourceExhaustedError(
                    f"{what}; give it more memory: a whole version needs room beside the one before"
                ) from error
            raise FailedPreconditionError(f"{what}; give a Redis that does that") from error


def _runs(keys: torch.Tensor, nbytes: int) -> Iterator[list[int]]:
    """Yield keys, so many at a time as one call is to have.

    Args:
        keys: An int64 vector.
        nbytes: The bytes that a call sends or gets for each.
    """
    count = max(1, min(_FIELDS_OF_CALL, _BYTES_OF_CALL // max(1, nbytes)))
    for some in keys.split(count):
        if len(some):
            yield some.tolist()


def _queue_rows(pipe: Any, name: str, one: KeyedChange, sends: bool = False) -> None:
    """Have a pipeline set rows; send each call if they need not be set at once."""
    start, nbytes = 0, one.row_nbytes
    for keys in _runs(one.keys, nbytes):
        data = bytes(as_bytes(one.rows[start : start + len(keys)]))
        told: list[int | bytes] = [b""] * (2 * len(keys))
        told[::2] = keys
        told[1::2] = [data[at : at + nbytes] for at in range(0, len(data), nbytes)]
        pipe.execute_command("HSET", name, *told)
        start += len(keys)
        if sends:
            pipe.execute()


def _queue_positions(pipe: Any, name: str, one: KeyedChange, sends: bool = False) -> None:
    """Have a pipeline say which key is at each position, by which increments tell rows."""
    fields = (one.changed // _KEYS_OF_FIELD).unique()
    for some in _runs(fields, _KEYS_OF_FIELD * 8):
        told: list[int | bytes] = []
        for field in some:
            keys = one.positions[field * _KEYS_OF_FIELD : (field + 1) * _KEYS_OF_FIELD]
            told += [field, bytes(as_bytes(keys))]
        pipe.execute_command("HSET", name, *told)
        if sends:
            pipe.execute()
    first, end = (-(-len(keys) // _KEYS_OF_FIELD) for keys in (one.positions, one.before))
    for some in _runs(torch.arange(first, max(first, end)), 8):
        pipe.execute_command("HDEL", name, *some)

"""Reading what is trained elsewhere, and modules that follow it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from stratagem._checkpoints.files import origins_of
from stratagem._core.names import Origin, UniqueNames, exchanged, lacking
from stratagem._core.tensors import require_integers
from stratagem._hosting.adoption import Adoption, ModuleAdopter
from stratagem._hosting.replica_views import ParameterRegistry
from stratagem._parameter_server.tables.parameter import TableParameter
from stratagem._parameter_server.tables.recording import AllocationRecorder, give_memory
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from stratagem_proto.rows import distinct
from stratagem_reader.reader import DEFAULT_LEASE, Follower
from stratagem_reader.sources import AnySource, source_at

_Built = TypeVar("_Built")
_Module = TypeVar("_Module", bound=nn.Module)

# A parameter that takes more bytes gets no memory while its module is built: the reader has it.
_MOST_BYTES_TWICE = 1 << 16


class Reader(Follower):
    """Follows what is trained elsewhere, and reads it here: one version at a time.

    A version is what all servers had at one moment. A thread of the reader takes each one over once
    it is here as a whole; then reads and forwards of modules see it, and none of its predecessors.
    A lost source ends nothing: what is here goes on being read, and `age` and `source_error` say
    so. It needs no strategy, no session of a server, and changes nothing.

    Args:
        source: What to follow: the "host:port" of each server of a cluster, in a list or with
            commas between them, in the order of their tasks; "serve://host:port", a reader server,
            where rows of tables are looked up and never come here; or a folder, or the URL of a
            store, that `strategy.save` writes to.
        token: The secret of the cluster; None for that of the environment.
        timeout: How many seconds to wait for the first version; 0 to wait for none.
        lease: How many seconds a version is held at most by `pin` and by a forward.
        max_age: How many seconds ago a version may have been published that is still read; None
            for any age.

    Raises:
        NotFoundError: There is nothing to follow, and was not until the time was over.
        DeadlineExceededError: The first version did not come in time.
        PermissionDeniedError: The source may not be read, or has not signed what it has.
        UnauthenticatedError: The servers are of a cluster with another token.
        UnavailableError: A server could not be reached until the time was over.
        FailedPreconditionError: A later release wrote it.
        InvalidArgumentError: The source is none.
    """

    __module__ = "stratagem"

    def __init__(
        self,
        source: AnySource,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        lease: float = DEFAULT_LEASE,
        max_age: float | None = None,
    ) -> None:
        super().__init__(source_at(source, token), timeout=timeout, lease=lease, max_age=max_age)

    def module(self, build: Callable[[], _Built], name: str | None = None) -> _Built:
        """Build modules that answer with what is here.

        They are made as in the scope of the strategy that trains them, so that their parameters are
        found by the same names; large ones and tables get no memory of their own. Then they are as
        after `follow`.

        Args:
            build: Makes a module, or several in the same order as the program that trains.
            name: What that program has given to `strategy.scope`; None for nothing.

        Returns:
            What `build` returns.

        Raises:
            NotFoundError: The version has no variable for a parameter.
            InvalidArgumentError: One has another shape or dtype, or is a namesake's.
            FailedPreconditionError: There is no version yet.
        """
        followed = _FollowedModules(self)
        with followed.adopter.watching(name), AllocationRecorder(_MOST_BYTES_TWICE):
            built = build()
        followed.follow()
        return built

    def follow(self, module: _Module, name: str | None = None) -> _Module:
        """Let a module answer with what is here, from now on; one that was built elsewhere.

        Its parameters and buffers become those of the present version, and of each later one; they
        require no gradients, and the module is in eval mode. Tables are looked up here: keys
        without a row get what training would begin with. A forward reads one version, as in `pin`.
        The module may be moved to another device or dtype; dense values are copied there then.

        Args:
            module: The module, which no strategy hosts.
            name: As of `module`.

        Returns:
            The module.

        Raises:
            NotFoundError: As by `module`.
            InvalidArgumentError: As by `module`.
            FailedPreconditionError: As by `module`.
            ContextError: A strategy hosts it.
        """
        followed = _FollowedModules(self)
        with followed.adopter.watching(name):
            followed.adopter.take(module)
        followed.follow()
        return module


class _FollowedModules:
    """Modules whose values are those of a reader.

    Args:
        reader: The reader.
    """

    def __init__(self, reader: Follower) -> None:
        self._reader = reader
        self._names = UniqueNames()
        self._adoptions: list[Adoption] = []
        self._roots: list[nn.Module] = []
        self.adopter = ModuleAdopter(
            self._names,
            ParameterRegistry([torch.device("cpu")]),
            self._adoptions.extend,
            self._roots.extend,
            self._prepare,
        )
        # What has memory of its own, on another device, follows when it is used.
        self._shown: list[tuple[nn.Module, dict[str, Any], str, str]] = []
        self._shown_commits = 0
        self._lock = threading.Lock()

    def _prepare(self, adoption: Adoption) -> None:
        if is_lazy(adoption.parameter):
            raise UnimplementedError(
                f"{adoption.module_path} has a lazy parameter, {adoption.name!r}; give it a batch "
                "before it follows a reader, or build it with its shapes"
            )

    def follow(self) -> None:
        """Give the modules that the adopter found the values of the reader."""
        reader = self._reader
        with reader.pin():
            self._require_told_apart()
            replacements = [(one, self._parameter(one)) for one in self._adoptions]
            parts = {id(part): part for root in self._roots for part in root.modules()}
            buffers = [
                (module, key, self._fitting(name, module._buffers[key]))
                for name, module, key in self.adopter.buffers.owners()
            ]
            names = {(id(module), key): name for name, module, key in self.adopter.buffers.owners()}
            for adoption, parameter in replacements:
                for module, key in adoption.owners:
                    module._parameters[key] = parameter
                    if not isinstance(parameter, TableParameter):
                        self._shown.append((module, module._parameters, key, adoption.name))
            for module, key, value in buffers:
                module._buffers[key] = value
                self._shown.append((module, module._buffers, key, names[id(module), key]))
            give_memory(parts.values())
            self._shown_commits = reader.replica.commits
        for root in self._roots:
            root.eval()
        for part in parts.values():
            part.register_forward_pre_hook(_Enter(self), prepend=True)
            part.register_forward_hook(_Leave(self), always_call=True)

    def _require_told_apart(self) -> None:
        mine: dict[str, Origin] = {}
        for adoption in self._adoptions:
            origin = self._names.origin(adoption.name)
            if origin is not None:
                mine[adoption.name] = origin
        theirs = origins_of(self._reader.replica.specs())
        confusion = exchanged(mine, theirs) or lacking(mine, theirs)
        if confusion:
            message = confusion.sentence("this program", "what is followed")
            raise InvalidArgumentError(message, variable=confusion.name)

    def _parameter(self, adoption: Adoption) -> Parameter:
        """Return what takes the place of a parameter."""
        name, mine = adoption.name, adoption.parameter
        table = self._reader.replica.tables.get(name)
        if table is None:
            return Parameter(self._fitting(name, mine), requires_grad=False)
        shape = tuple(mine.shape)
        alike = shape[1:] == table.row_shape if table.is_dynamic else shape == table.shape
        if not alike or mine.dtype != table.dtype:
            raise _unfit(name, mine, table.shape, table.dtype)
        found = TableParameter(shape, table.dtype, False)
        found.source = _FollowedTable(self._reader, name, is_dynamic=table.is_dynamic)
        return found

    def _fitting(self, name: str, mine: torch.Tensor | None) -> torch.Tensor:
        assert mine is not None
        if name not in self._reader.replica.names():
            raise NotFoundError(
                f"version {self._reader.version} has no {name!r}, which the module has; build the "
                "module as the program does that trains it, and pass name= if that builds it in "
                "strategy.scope(name)",
                variable=name,
            )
        value = self._reader.replica.value(name)
        if (value.shape, value.dtype) != (mine.shape, mine.dtype):
            raise _unfit(name, mine, tuple(value.shape), value.dtype)
        return value

    def enter(self, module: nn.Module) -> None:
        """Begin a forward: of one version, which the module shows."""
        if module.training:
            raise FailedPreconditionError(
                f"{type(module).__name__} follows a reader and is in training mode, in which a "
                "forward would write to what is followed; call eval() on it"
            )
        self._reader._enter()
        try:
            self._show_version()
        except BaseException:
            self._reader.pins.leave()
            raise
        _forwards.set((*_forwards.get(), _Forward(self, module, sys.exc_info()[1])))

    def leave(self, module: nn.Module) -> None:
        """End a forward, if it has begun.

        Raises:
            VersionExpiredError: It took longer than its version was held.
        """
        *outer, last = (*_forwards.get(),) or (None,)
        # torch calls this also where a hook before ours, or ours, has refused the forward.
        if last is None or last.followed is not self or last.module is not module:
            return
        _forwards.set(tuple(outer))
        pin = self._reader.pins.leave()
        if sys.exc_info()[1] is last.handled:
            pin.require_valid()

    def _show_version(self) -> None:
        commits = self._reader.replica.commits
        if self._shown_commits != commits:
            with self._lock, torch.no_grad():
                if self._shown_commits != commits:
                    self._show()
                    self._shown_commits = commits

    def _show(self) -> None:
        """Copy values to where they have memory of their own."""
        for _, kept, key, name in self._shown:
            mine, value = kept[key], self._reader.replica.value(name)
            if mine.device != value.device or mine.data_ptr() != value.data_ptr():
                mine.data.copy_(value)


class _Forward(NamedTuple):
    """A forward that runs.

    Attributes:
        followed: Whose module it is of.
        module: The module.
        handled: What its caller handles; another one, once it runs no more, is its own.
    """

    followed: _FollowedModules
    module: nn.Module
    handled: BaseException | None


# The innermost last.
_forwards: ContextVar[tuple[_Forward, ...]] = ContextVar("stratagem_forwards", default=())


def _unfit(
    name: str, mine: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name!r} has shape {tuple(mine.shape)} and dtype {mine.dtype} in this module, and "
        f"{tuple(shape)} and {dtype} in the version that is followed; build the module as the "
        "program does that trains it",
        variable=name,
    )


class _Hook:
    """A hook of a followed module. A copy of the module follows nothing, and nor do its hooks."""

    def __init__(self, followed: _FollowedModules | None = None) -> None:
        self._followed = followed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def __deepcopy__(self, memo: dict[int, object]) -> _Hook:
        return type(self)()


class _Enter(_Hook):
    def __call__(self, module: nn.Module, args: object) -> None:
        if self._followed is not None:
            self._followed.enter(module)


class _Leave(_Hook):
    def __call__(self, module: nn.Module, args: object, output: object) -> None:
        if self._followed is not None:
            self._followed.leave(module)


class _FoundHere:
    """What a lookup finds in a table of a reader; see `FoundRows`."""

    def __init__(self, reader: Follower, name: str, ids: torch.Tensor) -> None:
        self._reader, self._name, self._ids = reader, name, ids
        self.rows, self.places = distinct(ids.detach().to(torch.int64))

    def output(self) -> torch.Tensor | None:
        """Return the values of the ids."""
        return self._reader.lookup(self._name, self._ids)

    @property
    def values(self) -> torch.Tensor:
        """The values of the distinct rows."""
        return self._reader.lookup(self._name, self.rows)


class _FollowedTable:
    """A table of a reader as the source of a parameter; see `RowSource`."""

    def __init__(self, reader: Follower, name: str, is_dynamic: bool) -> None:
        self._reader, self.name, self._is_dynamic = reader, name, is_dynamic

    @property
    def is_dense(self) -> bool:
        """Whether all rows are stored."""
        return False

    @property
    def is_readable(self) -> bool:
        """Whether the table can be read whole."""
        return not self._is_dynamic

    def look_up(self, leaf: torch.Tensor, ids: torch.Tensor, training: bool) -> _FoundHere:
        """Return what a lookup finds."""
        require_integers(ids, self.name)
        return _FoundHere(self._reader, self.name, ids)

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Refuse gradients."""
        raise self._read_only()

    def read_whole(self) -> torch.Tensor:
        """Return all rows."""
        if self._is_dynamic:
            raise InvalidArgumentError(
                f"table {self.name!r} has any keys, and cannot be read whole; look keys up",
                variable=self.name,
            )
        count = self._reader.replica.table(self.name).shape[0]
        return self._reader.lookup(self.name, torch.arange(count))

    def replace(self, value: torch.Tensor) -> None:
        """Refuse to be written."""
        raise self._read_only()

    def _read_only(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self.name!r} follows a reader, which changes nothing; train it where it is trained",
            variable=self.name,
        )

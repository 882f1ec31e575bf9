"""What servers still hold of an earlier run of the same program."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from weakref import WeakValueDictionary

from stratagem._parameter_server.hosting.attachment import Found, described, find, traits
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.errors import AlreadyExistsError, AttachmentError
from stratagem_proto.v1.variable_pb2 import VariableSpec

_LOG = logging.getLogger("stratagem")

# What programs of this process created, by the server's address and the name. What is there belongs
# to a run that goes on, so that it can be no other's.
_in_use: WeakValueDictionary[tuple[str, str], RemoteVariable] = WeakValueDictionary()


class EarlierRun:
    """Lets a chief that was started again go on with the variables it had created.

    Args:
        task: Name of this task, for messages.
        store: Where they are kept.
    """

    def __init__(self, task: str, store: RemoteStore) -> None:
        self._task = task
        self._store = store
        self._found: dict[int, Found] | None = None

    def kept(self, wanted: Sequence[RemoteVariable]) -> list[RemoteVariable]:
        """Return those variables that need not be created, because they are there.

        Raises:
            AttachmentError: The servers hold the variables of another program.
        """
        if self._found is None:
            self._found = self._look()
        found = self._found
        kept = [one for one in wanted if one.place.ordinal in found]
        for variable in kept:
            self._require_equal(found[variable.place.ordinal], variable)
        if kept:
            self._report(kept, len(wanted) - len(kept))
        return kept

    def require_unused(self, variables: Sequence[RemoteVariable]) -> None:
        """Check that no other strategy of this process has variables of their names.

        Raises:
            AlreadyExistsError: One has, and has not been closed.
        """
        for variable in variables:
            if self._is_in_use(variable.place.server, variable.name):
                raise AlreadyExistsError(
                    f"variable {variable.name!r} on {variable.device_name} is used by "
                    "another strategy of this process; call close() of that one, for "
                    "instance where a cell of a notebook makes its strategy again. The "
                    "new one then goes on with the values that the servers have",
                    variable=variable.name,
                    task=self._task,
                )

    def take(self, variables: Sequence[RemoteVariable]) -> None:
        """Note that this run uses variables."""
        for variable in variables:
            _in_use[self._key(variable.place.server, variable.name)] = variable

    def _look(self) -> dict[int, Found]:
        # Whether a strategy is still in use must not depend on when cycles are collected.
        gc.collect()
        return {
            ordinal: one
            for ordinal, one in find(self._store.listing()).items()
            if not self._is_in_use(one.server, one.spec.name)
        }

    def _is_in_use(self, server: int, name: str) -> bool:
        user = _in_use.get(self._key(server, name))
        run = self._store.servers.runs.get(server)
        return user is not None and user.is_in_use(run)

    def _key(self, server: int, name: str) -> tuple[str, str]:
        return self._store.servers.addresses[server], name

    def _require_equal(self, found: Found, variable: RemoteVariable) -> None:
        same_server = found.server == variable.place.server
        if not same_server or traits(found.spec) != traits(variable.spec):
            raise self._difference(found, variable.spec)

    def _difference(self, found: Found, ours: VariableSpec) -> AttachmentError:
        return AttachmentError(
            "the servers still hold the variables of an earlier run, in which "
            f"variable {ours.ordinal} is {described(found.spec)} on "
            f"{found.spec.device}; in {self._task}'s program it is {described(ours)} "
            f"on {ours.device}. Restart the servers to begin anew, or run the earlier "
            "program to go on with it",
            variable=ours.name,
            task=self._task,
        )

    def _report(self, kept: Sequence[RemoteVariable], created: int) -> None:
        others = f"; the {created} others are created" if created else ""
        _LOG.warning(
            "%s goes on with the values of an earlier run, which the servers kept, "
            "for %s%s. Restart the servers to begin anew",
            self._task,
            ", ".join(repr(variable.name) for variable in kept[:3])
            + (f" and {len(kept) - 3} more variables" if len(kept) > 3 else ""),
            others,
        )

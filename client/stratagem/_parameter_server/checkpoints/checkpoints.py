"""Saving and restoring what servers hold, as a strategy does it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from stratagem._checkpoints.deferred import CheckpointEntry, Restoration
from stratagem._checkpoints.files import written_elsewhere
from stratagem._cluster.membership import Membership
from stratagem._parameter_server.checkpoints.restoring import ClusterRestorer
from stratagem._parameter_server.checkpoints.saving import ClusterSaver, Contents
from stratagem._parameter_server.checkpoints.worker_states import WorkerStates
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem_proto.errors import InvalidArgumentError

Buffers = Iterable[tuple[str, torch.Tensor]]


class ClusterCheckpoints:
    """The checkpoints of one strategy.

    `variables` are those of this program, as they are created; `buffers` are those of its modules,
    which are in this process. `states` is what this worker wants to be kept besides.
    """

    def __init__(
        self,
        membership: Membership,
        store: RemoteStore,
        variables: Sequence[RemoteVariable],
        buffers: Buffers,
    ) -> None:
        self._membership = membership
        self._store = store
        self._variables = variables
        self._buffers = buffers
        self._saver = ClusterSaver(store.servers, store.peer_seconds)
        self._restorer: ClusterRestorer | None = None
        self.states = WorkerStates(membership, store)

    def save(
        self, root: str | os.PathLike[str], keep: int, extra: Mapping[str, Any]
    ) -> Future[None]:
        """Save what the servers hold, and this task's buffers, if it is the chief."""
        if keep < 1:
            raise InvalidArgumentError(f"keep is {keep}; keep at least 1 checkpoint")
        if not self._membership.is_chief:
            return written_elsewhere()
        self._store.servers.require_all_visible("a checkpoint")
        local = {name: value.detach().cpu().clone() for name, value in self._buffers}
        contents = Contents(local, extra, self._membership.num_trainers)
        return self._saver.save(root, contents, keep)

    def restore(self, path: str | os.PathLike[str], strict: bool) -> Restoration:
        """Give variables, optimizers and buffers what they have in a checkpoint."""
        restorer = ClusterRestorer(self._store, path, self._membership.creates)
        restorer.require_fit(self._variables, self._entries(), strict)
        restorer.restore(self._variables, accounts=True)
        restorer.restore_buffers(self._entries())
        restorer.meet()
        self._restorer = restorer
        self.states.restore(restorer.checkpoint.index.workers)
        return Restoration(restorer, restorer.checkpoint.index.extra)

    def created(self, variables: Sequence[RemoteVariable]) -> None:
        """Restore variables that were made after a checkpoint was restored."""
        if self._restorer is not None and variables:
            self._restorer.restore(variables)
            self._store.refresh(variables)

    def buffers_hosted(self) -> None:
        """Restore buffers that were made after a checkpoint was restored."""
        if self._restorer is not None:
            self._restorer.restore_buffers(self._entries())

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.wait()

    def _entries(self) -> list[CheckpointEntry]:
        return [CheckpointEntry.of_tensor(*named) for named in self._buffers]

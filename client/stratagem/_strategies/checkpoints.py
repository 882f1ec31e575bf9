"""The methods of strategies that save and restore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

import torch

from stratagem._core.contexts import entered, require_cross_replica_or_default

if TYPE_CHECKING:
    from stratagem._checkpoints.restore_status import RestoreStatus
    from stratagem._core.protocols import AnyExtended, AnyStrategy


class CheckpointMethods:
    """The part of `Strategy` that is about checkpoints. Spec: VCK-1 to VCK-9."""

    _extended: AnyExtended

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return snapshots of the variables, by name.

        There are also the parameters and buffers of modules, under the names of their own
        `state_dict()`, and the state of optimizers, as `<variable>/<optimizer>/<key>`. Values are
        those of all replicas together: for `synchronization=ON_READ` what reading it would give.

        Raises:
            UnimplementedError: The strategy's variables are not in this process.
            InvalidArgumentError: A variable is synchronized ON_READ and has no aggregation.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: VCK-1 to VCK-7.
        """
        require_cross_replica_or_default(self._extended, "state_dict")
        with entered(self._own()):
            return self._extended._state_dict()

    def load_state_dict(
        self, state: Mapping[str, torch.Tensor], strict: bool = True
    ) -> RestoreStatus:
        """Replace values by those that `state_dict` of this or another strategy gave.

        What has a value for no variable of this program is kept: a variable, or a parameter, that
        is made later starts with it.

        Args:
            state: The values by name.
            strict: Whether each variable must be in it; otherwise those that are not stay as they
                are.

        Returns:
            Says what has not been used yet.

        Raises:
            NotFoundError: A variable is not in it; nothing is changed.
            InvalidArgumentError: A shape or a dtype differs; nothing is changed.
            UnimplementedError: The strategy's variables are not in this process.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: VCK-1 to VCK-8.
        """
        require_cross_replica_or_default(self._extended, "load_state_dict")
        with entered(self._own()):
            status: RestoreStatus = self._extended._load_state_dict(state, strict)
            return status

    def save(self, path: str | os.PathLike[str], wait: bool = True) -> Future[None]:
        """Save `state_dict` as one safetensors file.

        The file appears as a whole, in place of an earlier one. A program without Stratagem reads
        it by `safetensors.torch.load_file`. Of several workers all make the call, and the chief
        writes.

        Args:
            path: The file, for instance "model.safetensors", or its URL, such as
                "s3://bucket/model.safetensors".
            wait: Whether to return only when it is written. Otherwise training goes on meanwhile,
                and the file has the values as of the call.

        Returns:
            Done when the file is written, or has the error.

        Raises:
            NotFoundError: The folder does not exist.
            InvalidArgumentError: `path` is a folder or a URL of another kind, or safetensors does
                not know a variable's dtype; otherwise as for `state_dict`.
            PermissionDeniedError: The store does not let this process write there.
            StoreError: The store fails, or cannot be reached.
            UnimplementedError: As for `state_dict`.
            ContextError: As for `state_dict`.

        Spec: VCK-1 to VCK-9.
        """
        # Late: programs that save no files do without what writes them.
        from stratagem._checkpoints.files import writer, written_elsewhere
        from stratagem_proto.stores.places import place_of

        place_of(path)
        state = self.state_dict()
        if not self._extended.should_checkpoint:
            return written_elsewhere()
        written = writer.write(path, state)
        if wait:
            written.result()
        return written

    def restore(self, path: str | os.PathLike[str], strict: bool = True) -> RestoreStatus:
        """Replace values by those of a file that `save` wrote.

        Args:
            path: The file, or a folder of checkpoints that a cluster has saved; or its URL.
            strict: As for `load_state_dict`.

        Returns:
            Says what has not been used yet.

        Raises:
            NotFoundError: There is no such file, or a variable is not in it.
            DataLossError: It is no safetensors file, or is damaged.
            PermissionDeniedError: It is not signed with the key in the file that
                STRATAGEM_CHECKPOINT_KEY_FILE names; files never are. Or the store does not let this
                process read there.
            StoreError: The store fails, or cannot be reached.
            InvalidArgumentError: As for `load_state_dict`.
            UnimplementedError: As for `load_state_dict`.
            ContextError: As for `load_state_dict`.

        Spec: VCK-1 to VCK-8.
        """
        # Late: as in `save`.
        from stratagem._checkpoints.files import read_state

        return self.load_state_dict(read_state(path), strict)

    def _own(self) -> AnyStrategy:
        return cast("AnyStrategy", self)

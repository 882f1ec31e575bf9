"""Strategies whose variables are all in this process, which saves them by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from stratagem._core.contexts import entered, require_cross_replica_or_default
from stratagem._strategies.strategy import Strategy

if TYPE_CHECKING:
    from stratagem._checkpoints.alone import AloneCheckpoints, Held
    from stratagem._checkpoints.restoring import RestoreStatus, Resumption
    from stratagem._local.hosting import LocalHosting
    from stratagem_storage.checkpoint.folder import Checkpoint


class OneProcessStrategy(Strategy):
    """A strategy whose variables are all in this process.

    A program that was written for `ParameterServerStrategy` saves and resumes under it as there.
    """

    def save(
        self,
        path: str | os.PathLike[str],
        wait: bool = True,
        keep: int = 1,
        extra: Mapping[str, Any] | None = None,
        incremental: bool = False,
    ) -> Future[None]:
        """Save `state_dict` as one safetensors file, or as a checkpoint of a folder.

        Args:
            path: A path that ends in ".safetensors" becomes one file, which
                `safetensors.torch.load_file` reads; it appears as a whole, in place of an earlier
                one. Any other path is a folder of checkpoints, made if need be, as a cluster of
                servers writes it: with the file `latest` and a folder for each checkpoint. A crash
                at any time leaves the latest one whole. Or the URL of either.
            wait: Whether to return only when it is written. Otherwise training goes on meanwhile,
                and the checkpoint is as of the call.
            keep: How many checkpoints the folder keeps, this one included.
            extra: What else to keep, as JSON can express it, for instance the number of an epoch;
                the `RestoreStatus` of `restore` has it.
            incremental: Whether only the rows are written that differ from the latest checkpoint in
                the folder, to which it then refers.

        Returns:
            Done when it is written, or has the error.

        Raises:
            NotFoundError: The folder of `path`, or the bucket, does not exist.
            InvalidArgumentError: `path` is one file, and there is a `keep`, `extra` or
                `incremental`; it is a file where a folder is to be, or the other way round; `extra`
                is not for JSON, or safetensors does not know a variable's dtype.
            PermissionDeniedError: The store does not let this process write there.
            StoreError: The store fails, or cannot be reached.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: VCK-1 to VCK-9.
        """
        from stratagem._checkpoints.alone import is_one_file
        from stratagem._checkpoints.series import Series

        if is_one_file(path, (keep, extra, incremental) != (1, None, False)):
            return super().save(path, wait)
        require_cross_replica_or_default(self._extended, "save")
        written = self._folders.save(path, self._held, Series(keep, incremental), extra or {})
        if wait:
            written.result()
        return written

    def restore(self, path: str | os.PathLike[str], strict: bool = True) -> RestoreStatus:
        """Replace values, and the state of optimizers, by those of a checkpoint.

        Args:
            path: What `save` of this or another strategy was given; of a folder the latest
                checkpoint is taken. What `export` wrote, and folders of shards of other programs,
                will do as well.
            strict: Whether each variable must be in it; otherwise those that are not stay as they
                are.

        Returns:
            Says what has not been used yet, and has what was kept as `extra`, and the `position` in
            `steps`.

        Raises:
            NotFoundError: There is no checkpoint, or a variable is not in it.
            InvalidArgumentError: A shape or a dtype differs; nothing is changed.
            DataLossError: It is damaged; nothing is changed. Restore another one.
            PermissionDeniedError: It is not signed with the key in the file that
                STRATAGEM_CHECKPOINT_KEY_FILE names, or the store does not let this process read
                there.
            StoreError: The store fails, or cannot be reached.
            FailedPreconditionError: This program counts its steps, and the checkpoint does not say
                how many were taken.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: VCK-1 to VCK-8.
        """
        from stratagem._checkpoints.files import checkpoint_at
        from stratagem_storage.stores import store_of
        from stratagem_storage.stores.places import place_of

        require_cross_replica_or_default(self._extended, "restore")
        load = partial(self._load, strict=strict)
        if not store_of(place_of(path)).is_file(place_of(path)):
            return self._folders.restore(path, load)
        checkpoint = checkpoint_at(path)
        return super().restore(path, strict) if checkpoint is None else load(checkpoint)

    def resume(
        self, path: str | os.PathLike[str], begin: Callable[[], object] | None = None
    ) -> Resumption:
        """Go on with the latest checkpoint of a folder, or begin.

        It is called once, first after the model, its optimizers and what is registered for
        checkpoints are made. `steps` then goes on where the checkpoint was saved::

            run = strategy.resume("checkpoints")
            for epoch in range(epochs):
                for step in strategy.steps(steps_per_epoch):
                    strategy.run(train, args=(batch_of(epoch, step),))
                strategy.save("checkpoints", keep=2, extra={"epoch": epoch + 1})
            run.finish()

        Args:
            path: The folder of checkpoints that the program saves to, or a URL, as of `save`.
            begin: Called where there is no checkpoint: for instance to load what other values to
                begin with.

        Returns:
            What was found: the `position`, the `extra` of the latest checkpoint, and whether the
            run has `ended`. Its `finish` ends the run.

        Raises:
            FailedPreconditionError: This process has trained or restored before; or the checkpoint
                is of several workers, another model, or a program that does not count its steps.
            NotFoundError: A variable is not in the checkpoint; or there is none, and nothing that
                could contain the folder, as of `save`. Nothing is changed.

        Otherwise as `restore`. Optimizers then step only within loops over `steps`.
        """
        require_cross_replica_or_default(self._extended, "resume")
        return self._folders.resume(path, begin, self._load, self._held)

    def steps(self, stop: int, start: int | None = None) -> Iterator[int]:
        """Yield the numbers of the steps that are left, up to `stop` and without it.

        As `range(stop)`, in a program that may be started again: a checkpoint of a folder has the
        position after the last `run`, or optimizer's step, that it contains, and after `restore` or
        `resume` the loop goes on there. A program may have several such loops, one after the other;
        each counts from 0.

        Args:
            stop: The number after the last one.
            start: Where to begin if nobody knows how far the program is; by default 0.

        Raises:
            FailedPreconditionError: A loop over `steps` runs already.
        """
        return self._folders.steps(stop, start)

    def register_for_checkpointing(self, name: str, stateful: Any) -> None:
        """Have checkpoints of a folder contain a state, and restore it.

        It is for how far the program has read its data: a checkpoint has the position after the
        last of its runs that the variables contain. What is registered after `restore` starts with
        its state there.

        Args:
            name: The state is found by it. A later call with it takes the place of an earlier one,
                as for the iterator of the next epoch.
            stateful: Has `state_dict()` and `load_state_dict()`. The state is what JSON can
                express, and small: it is taken after each run.

        Raises:
            InvalidTypeError: It lacks a method.
            InvalidArgumentError: The state is not for JSON, or larger than 64 KiB.
        """
        self._folders.register(name, stateful)

    @property
    def _own_hosting(self) -> LocalHosting:
        return cast("LocalHosting", self._extended._hosting)

    @property
    def _folders(self) -> AloneCheckpoints:
        return self._own_hosting.folders

    def _held(self) -> Held:
        with entered(self):
            return self._own_hosting.held()

    def _load(self, checkpoint: Checkpoint, strict: bool = True) -> RestoreStatus:
        with entered(self):
            return self._own_hosting.load(checkpoint, strict)

"""Saving, restoring, reading and deleting what servers hold, as of one moment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stratagem._checkpoints.restoring import RestoreStatus, Resumption
from stratagem._checkpoints.series import Series
from stratagem._core.contexts import entered, require_cross_replica_or_default
from stratagem._core.variables import Variable
from stratagem._local.one_process import OneProcessStrategy
from stratagem._parameter_server.alone import LocalExtended
from stratagem._parameter_server.checkpoints.publishing import PeriodicPublishing
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem_proto.errors import InvalidArgumentError
from stratagem_storage.stores.places import shared_place


class CheckpointedStrategy(OneProcessStrategy):
    """A strategy whose variables are on the servers of a cluster, if there is one."""

    @property
    def extended(self) -> ParameterServerExtended | LocalExtended:
        """Methods for libraries and for authors of strategies. Spec: STR-2."""
        assert isinstance(self._extended, ParameterServerExtended | LocalExtended)
        return self._extended

    def save(
        self,
        path: str | os.PathLike[str],
        wait: bool = True,
        keep: int = 1,
        extra: Mapping[str, Any] | None = None,
        incremental: bool = False,
    ) -> Future[None]:
        """Save the variables of all servers, as they are at one moment, to a folder.

        Of each worker's steps a first part is in the checkpoint on every server, and the rest on
        none. A step is one `run` with all that it sends, or outside of `run` one request, such as
        an assignment. While the moment is found, steps that have not begun wait until those that
        have are over: some milliseconds, unless a worker takes long from its first push to the end
        of its `run`; after a second they go on, and it is tried again. Then each server writes its
        own file while training goes on, and copies what changes before it is written.

        Only the chief saves, with its modules' buffers. Other workers may call it in the same loop:
        that writes nothing, is done at once, and the first such call is told in the log. All
        servers and the chief have to share the folder.

        Args:
            path: The folder of checkpoints, made if need be. It has the file `latest` and a folder
                for each checkpoint. A crash at any time leaves the latest one whole. Or the URL of
                a place in a store, such as "s3://bucket/run", for which all servers and this
                process need the store's library. Without a cluster, a path that ends in
                ".safetensors" becomes one file: see `Strategy.save`.
            wait: Whether to return only when it is written. Otherwise training goes on meanwhile,
                and the checkpoint is as of the call.
            keep: How many checkpoints the folder keeps, this one included.
            extra: What else to keep, as JSON can express it, for instance the number of an epoch;
                the `RestoreStatus` of `restore` has it.
            incremental: Whether servers write only the rows that differ from the latest checkpoint
                in the folder, and refer to it for the others. It stays for as long as one is kept
                that refers to it, whatever `keep` says. Each ninth checkpoint has all rows, and so
                has one for which the latest cannot be read. Earlier saves are waited for.

        Returns:
            Done when it is written, or has the error.

        Raises:
            NotFoundError: The folder of `path`, or the bucket, does not exist, or a server does not
                see it.
            InvalidArgumentError: `path` is a file or a URL of another kind, `extra` is not for
                JSON, or safetensors does not know a variable's dtype.
            FailedPreconditionError: The chief does not see what a server has written, or device
                filters hide a server from it, so that its part would lack.
            PermissionDeniedError: The folder is not below --checkpoint-root of servers, or the
                store does not let a process write there.
            StoreError: The store fails, or cannot be reached.
            DeadlineExceededError: Workers were in the midst of a step for `peer_seconds`.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: CKP-3, CKP-4, SHV-30, SHV-31.
        """
        if isinstance(self.extended, LocalExtended):
            return super().save(path, wait, keep, extra, incremental)
        shared_place(path)
        require_cross_replica_or_default(self.extended, "save")
        with entered(self):
            series = Series(keep, incremental)
            written = self.extended._cluster.save(path, series, extra or {})
        if wait:
            written.result()
        return written

    def register_for_checkpointing(self, name: str, stateful: Any) -> None:
        """Have checkpoints contain a state of this worker, and restore it.

        It is for how far a worker has read its data: each worker registers its own iterator over a
        distributed dataset, and a checkpoint has of each the position after the last of its runs
        that the variables contain. `restore` brings it back to the same task; what is registered
        later starts with its state. If there are more or fewer workers than when it was saved,
        their shares of the data are others, so states are left alone, and a warning says so::

            iterator = iter(dataset)
            strategy.register_for_checkpointing("data", iterator)

        Args:
            name: The state is found by it. A later call with it takes the place of an earlier one,
                as for the iterator of the next epoch.
            stateful: Has `state_dict()` and `load_state_dict()`. The state is what JSON can
                express, and small: it is taken after each run, and travels with each request.

        Raises:
            InvalidTypeError: It lacks a method.
            InvalidArgumentError: The state is not for JSON, or larger than 64 KiB.
        """
        if isinstance(self.extended, LocalExtended):
            super().register_for_checkpointing(name, stateful)
        else:
            self.extended._cluster.register_for_checkpointing(name, stateful)

    def restore(self, path: str | os.PathLike[str], strict: bool = True) -> RestoreStatus:
        """Replace values, and the state of optimizers, by those of a checkpoint.

        The servers read it, each what it hosts; their number may be another than when it was saved.
        All workers make the call, and return when the chief has. Variables that are made later
        start with their values. So does the account of data that a coordinator's workers share
        (`exactly_once`).

        Where several workers train, their run begins with this call, at the beginning of the
        program. A worker or a chief that is started again while the run is under way joins it:
        variables stay as they are, since others train them. The status has the `position` of this
        task, and `steps` begins there. All of them go back to a checkpoint by `roll_back`.

        Args:
            path: What `save` of this or another strategy was given; the latest checkpoint there is
                taken. One checkpoint in it, or any safetensors file, will do as well, and so will
                the URL of either.
            strict: Whether each variable must be in it; otherwise those that are not stay as they
                are.

        Returns:
            Says what has not been used yet, and has what was kept as `extra`.

        Raises:
            NotFoundError: There is no checkpoint, or a variable is not in it.
            InvalidArgumentError: A shape or a dtype differs; nothing is changed.
            DataLossError: It is damaged; nothing is changed. Restore another one.
            PermissionDeniedError: It is not signed with the key in the file that
                STRATAGEM_CHECKPOINT_KEY_FILE names, or not below --checkpoint-root of servers;
                nothing is changed.
            AbortedError: A server went away when others had replaced their values already; restore
                again.
            DeadlineExceededError: The chief has not made the call in `peer_seconds`.
            FailedPreconditionError: This process takes part in a run of several workers already, or
                another run than that of the checkpoint is under way.
            ContextError: A replica is running, or another strategy is in charge.

        Spec: CKP-2, CKP-3, CKP-5, SHV-30.
        """
        if isinstance(self.extended, LocalExtended):
            return super().restore(path, strict)
        shared_place(path)
        require_cross_replica_or_default(self.extended, "restore")
        with entered(self):
            return self.extended._cluster.restore(path, strict)

    def resume(
        self, path: str | os.PathLike[str], begin: Callable[[], object] | None = None
    ) -> Resumption:
        """Go on with a run, wherever it is, or begin it.

        All workers make the call, first after the model, its optimizers and what is registered for
        checkpoints are made; a process that is started again makes it, too. Where servers train
        already, it joins them and changes nothing. Otherwise they begin with the latest checkpoint
        in the folder, or without one with the values that the program has made. `steps` goes on
        where this task was, and each step is applied once::

            run = strategy.resume("checkpoints")
            for epoch in range(epochs):
                for step in strategy.steps(steps_per_epoch):
                    strategy.run(train, args=(batch_of(epoch, step),))
                strategy.barrier(f"epoch-{epoch}")
                strategy.save("checkpoints", keep=2, extra={"epoch": epoch + 1})
            run.finish()

        Args:
            path: The folder of checkpoints that the program saves to, or a URL, as of `save`.
            begin: Called, on the chief alone, where there is neither a run nor a checkpoint: for
                instance to load what other values to begin with.

        Returns:
            What was found: the `position` of this task, the `extra` of the latest checkpoint, and
            whether the run has `ended`. Its `finish` ends the run.

        Raises:
            FailedPreconditionError: This process has trained or set values before; another worker
                has trained before the chief made the call; the run under way has another folder or
                another number of workers; or the checkpoint is of another number of workers,
                another model, or a program that does not count its steps. Nothing is changed.
            NotFoundError: A variable is not in the checkpoint; or there is none, and nothing that
                could contain the folder, as of `save`. Nothing is changed.
            DeadlineExceededError: The chief has not made the call in `peer_seconds`.

        Otherwise as `restore`. Optimizers then step only within loops over `steps`.
        """
        if isinstance(self.extended, LocalExtended):
            return super().resume(path, begin)
        shared_place(path)
        require_cross_replica_or_default(self.extended, "resume")
        self.extended._coordination.require_programs_of_workers("resume()")
        with entered(self):
            return self.extended._cluster.resume(path, begin)

    def roll_back(self, path: str | os.PathLike[str], strict: bool = True) -> RestoreStatus:
        """Go back to a checkpoint, together with all workers.

        All of them make the call, and nobody trains until it returns: what any of them has trained
        since the checkpoint is given up. Each goes on from its own position then, within the loop
        over `steps` that it is in. A single worker may as well `restore`.

        Args:
            path: As for `restore`.
            strict: As for `restore`.

        Returns:
            As `restore`.

        Raises:
            DeadlineExceededError: Naming the workers that did come within `peer_seconds`; nothing
                is changed.
            FailedPreconditionError: The loop over `steps` began after the checkpoint, or the
                checkpoint does not say of all workers how many steps they had taken; nothing is
                changed.

        Otherwise as `restore`.
        """
        if isinstance(self.extended, LocalExtended):
            return self.restore(path, strict)
        shared_place(path)
        require_cross_replica_or_default(self.extended, "roll_back")
        self.extended._coordination.require_programs_of_workers("roll_back()")
        with entered(self):
            return self.extended._cluster.roll_back(path, strict)

    def steps(self, stop: int, start: int | None = None) -> Iterator[int]:
        """Yield the numbers of the steps that are left, up to `stop` and without it.

        As `range(stop)`, in a program that may be started again: servers know how far this task is,
        so its next process goes on where the former one was, whether that has restored or not, and
        whatever the other workers do meanwhile. The step in which the former one ended is taken
        once more. What servers have applied of it counts once, and so each step is applied once on
        all servers, wherever it broke off::

            for step in strategy.steps(100):
                strategy.run(train, args=(batches[step],))

        A program may have several such loops, one after the other; each counts from 0. Checkpoints
        have the position of each worker as of the last of its runs, or its optimizers' steps, that
        they contain: count what has one of these. Of a step with several, what comes after the
        checkpoint is left out by `restore`.

        Args:
            stop: The number after the last one.
            start: Where to begin if nobody knows how far this task is; by default 0.

        Raises:
            FailedPreconditionError: A loop over `steps` runs already. Or the run began with a
                checkpoint that does not say how far this task was, and there is no `start`; or the
                chief has ended when some servers had restored. Or there is a `ClusterCoordinator`,
                whose functions would run again with a step.

        Without a cluster, only a checkpoint that is restored keeps the place of this program.
        """
        if isinstance(self.extended, LocalExtended):
            return super().steps(stop, start)
        self.extended._coordination.require_no_functions()
        return self.extended._cluster.steps(stop, start)

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context manager in which all values are those of one moment.

        While others train, this task can evaluate one version of the model: all that it reads in
        the block, in `run` or elsewhere, is what the variables were when the block began, whichever
        server they are on. The moment is found as for `save`. Nothing can be written in the block.
        What newer values there are it sees after the block, or in the next one::

            while not stopped:
                with strategy.snapshot():
                    losses = [strategy.run(loss_of, args=(b,)) for b in batches]

        The servers keep the values of that moment that change meanwhile, so each may need the
        memory of its variables once more; at most for 4 tasks at once, and until the block or this
        task's session ends. Buffers of modules, which are on no server, are this task's own.
        Without a cluster nobody else trains, and nothing happens.

        Raises:
            FailedPreconditionError: This strategy reads from a snapshot already, or 4 other tasks
                do.
            DeadlineExceededError: Workers were in the midst of a step for `peer_seconds`.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(self.extended, "snapshot")
        return self.extended._cluster.snapshot()

    def publish(self) -> int:
        """Publish the values of all servers, as they are at one moment, as a version.

        Readers outside of the cluster follow versions: of each they take what has changed since the
        one before, or all of it. The moment is found as for `save`, and a version has what a
        checkpoint has without the state of optimizers. Servers keep the latest version for readers
        that come anew: until the next one, values that change are copied before.

        Only the chief publishes; buffers of its modules are a part of the version.

        Returns:
            The number of the version, which is greater than those before: milliseconds since 1970,
            unless versions follow each other faster. It grows also over servers that were restored.

        Raises:
            FailedPreconditionError: This is not the chief, another program publishes, a server is
                hidden from this task, or there is no cluster.
            InvalidArgumentError: safetensors does not know a variable's dtype.
            PermissionDeniedError: The policy of a server does not let this task publish.
            DeadlineExceededError: Workers were in the midst of a step for `peer_seconds`.
            SessionLostError: A server was restarted; publish again.
            UnavailableError: A server cannot be reached. What others have got of this version no
                reader takes; publish again.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(self.extended, "publish")
        return self.extended._cluster.publish()

    def publish_every(
        self, seconds: float | None = None, *, steps: int | None = None
    ) -> PeriodicPublishing:
        """Publish a version now and then, while this program trains.

        As `publish`, in a thread of its own: what the program has written to parameters outside of
        steps is published after the next step. A version that cannot be published is told in the
        log of this program, and tried again::

            with strategy.publish_every(seconds=0.2):
                for batch in batches:
                    strategy.run(train_step, args=(batch,))

        Args:
            seconds: The time from one version to the next, in seconds.
            steps: Instead of it, how many steps of this task lie between two versions: each `run`
                is one, and outside of `run` each optimizer's step or assignment. The functions of a
                coordinator are steps of its workers, so give it `seconds`.

        Returns:
            What ends it: leave its `with` block, or call its `close()`. `strategy.close()` ends it,
            too.

        Raises:
            InvalidArgumentError: Neither or both are given, or one is not above 0.
            FailedPreconditionError: As of `publish`.
        """
        return self.extended._cluster.publish_every(seconds, steps)

    def versions_behind(self, version: int) -> int:
        """Return how many versions this program has published after one.

        An actor says with what it has collected which version of a policy it has followed, and a
        learner refuses what is too old::

            if strategy.versions_behind(rollout.version) > 2:
                continue

        Args:
            version: The number of the version, as `publish` returns it and a reader says it.

        Returns:
            How many there were since; 0 for the last one.

        Raises:
            StaleVersionError: It is none of the last 1,024 that this program has published, such as
                one of the program that was here before a restart.
            FailedPreconditionError: This is not the chief, or there is no cluster.
        """
        return self.extended._cluster.versions_behind(version)

    def forget(self, *objects: nn.Module | Variable | ShardedVariable | Optimizer) -> list[str]:
        """Delete what the program needs no more, as the models of a search, on the servers.

        Variables stay on the servers until then, whether or not a program still refers to them,
        since other workers, an evaluator or a checkpoint may. All workers make the call, with the
        same objects; the chief deletes once all have come, the state of optimizers too. Names are
        free again. Modules stay as they are, with their last values, as plain ones; what was
        dropped with no call stays. Without a cluster, too, where nothing stays that the program
        does not refer to.

        Args:
            objects: Modules with all of their parts, variables, and `DistributedOptimizer`s, of
                which the state of what is left is deleted.

        Returns:
            The names of the variables, sorted.

        Raises:
            InvalidTypeError: Something else was given.
            InvalidArgumentError: Something is not of this strategy, a part of a variable, or was
                forgotten before; nothing is deleted.
            FailedPreconditionError: An optimizer that is not given steps one of the parameters, or
                another module has it; or functions of a coordinator have not ended, or this task
                reads from a snapshot. Nothing is deleted.
            DeadlineExceededError: Other workers have not made the call within `peer_seconds`.
            UnavailableError: A server cannot be reached. The call can be repeated.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(self.extended, "forget")
        if not objects:
            raise InvalidArgumentError("forget() was given nothing; give it what to delete")
        with entered(self):
            return self.extended.forget(objects)

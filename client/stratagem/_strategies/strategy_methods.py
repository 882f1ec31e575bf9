"""The methods of strategies that save and restore, bring data, and show how training goes."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from stratagem._core.contexts import current_context, entered, require_cross_replica_or_default
from stratagem._core.options import InputContext, ValueContext
from stratagem._core.scalars import Sink
from stratagem._input.options import AutoShardPolicy, InputOptions
from stratagem._strategies.extended import require_function
from stratagem_proto.errors import ContextError, FailedPreconditionError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._checkpoints.restoring import RestoreStatus
    from stratagem._core.protocols import AnyExtended, AnyStrategy
    from stratagem._input.lookahead import Lookups
    from stratagem._strategies.hooks import StrategyHooks
    from stratagem._strategies.progress_bar import ProgressBar


def no_servers(method: str) -> FailedPreconditionError:
    """Return the error of a strategy that has no servers whose values it could publish."""
    return FailedPreconditionError(
        f"{method} is about what servers hold, and this strategy has no cluster of them; train "
        "with ParameterServerStrategy and a resolver or TF_CONFIG, or save() a file and read that"
    )


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

    def publish(self) -> int:
        """Raise FailedPreconditionError: only a ParameterServerStrategy publishes versions."""
        raise no_servers("publish()")

    def publish_every(self, seconds: float | None = None, *, steps: int | None = None) -> Any:
        """Raise FailedPreconditionError: only a ParameterServerStrategy publishes versions."""
        raise no_servers("publish_every()")

    def versions_behind(self, version: int) -> int:
        """Raise FailedPreconditionError: only a ParameterServerStrategy publishes versions."""
        raise no_servers("versions_behind()")

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
        from stratagem_storage.stores.places import place_of

        place_of(path)
        state = self.state_dict()
        if not self._extended.should_checkpoint:
            return written_elsewhere()
        written = writer.write(path, state)
        if wait:
            written.result()
        return written

    def export(
        self,
        module: nn.Module,
        path: str | os.PathLike[str],
        *,
        stored_rows: bool = False,
        shard_bytes: int | None = None,
    ) -> None:
        """Write a module's `state_dict()` for programs that know nothing of Stratagem.

            strategy.export(model, "model.safetensors")

            plain = Model()  # in any program
            plain.load_state_dict(safetensors.torch.load_file("model.safetensors"))

        The names are those of `module.state_dict()`. Tables on parameter servers are in it whatever
        their size: their rows go to the disk some MiB at a time, and are of one moment, as in
        `snapshot`, while others train. Of several workers all make the call, and the chief writes.
        `restore` takes what was written, without an optimizer's state, into any strategy.

        Args:
            module: The module; several as an `nn.ModuleDict` of them.
            path: The new safetensors file, or its URL; an earlier one is replaced as a whole. With
                `shard_bytes` a folder.
            stored_rows: Whether tables whose rows servers make are written as the rows that are
                stored, and `NAME[keys]`, the int64 vector of their keys or numbers, ascending. A
                `DynamicEmbedding` needs it. This process keeps the keys meanwhile, 24 bytes each.
            shard_bytes: The most bytes of values in a file, for a folder of several files and
                `model.safetensors.index.json`, which says what is in which, as Hugging Face's
                libraries know it. A larger tensor is divided into `NAME/part_0`, `NAME/part_1` and
                so on, which follow on each other.

        Raises:
            NotFoundError: The folder does not exist.
            InvalidArgumentError: `path` is a folder or a URL of another kind; safetensors does not
                know a dtype; the module has a `DynamicEmbedding`, or state that is no tensor.
            DeadlineExceededError: As of `snapshot`.
            StoreError: The store fails, or cannot be reached.
            ContextError: A replica is running, or another strategy is in charge.
        """
        # Late: as in `save`.
        from stratagem._checkpoints.exporting import export

        require_cross_replica_or_default(self._extended, "export")
        if self._extended.should_checkpoint:
            with self._extended._one_moment():
                export(module, path, stored_rows, shard_bytes)

    def restore(self, path: str | os.PathLike[str], strict: bool = True) -> RestoreStatus:
        """Replace values by those of a file that `save` wrote.

        Args:
            path: The file, or a folder of checkpoints that a cluster has saved; or its URL. What
                `export` wrote, and folders of shards of other programs, will do as well.
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


class DatasetMethods:
    """The part of `Strategy` that is about input. Spec: STR-33, STR-35, STR-36."""

    _extended: StrategyHooks

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: InputOptions | None = None,
        auto_shard_policy: AutoShardPolicy | int = AutoShardPolicy.AUTO,
    ) -> Any:
        """Split each element of a dataset between the replicas.

        Each element is a global batch: of B rows and N replicas the first gets the first ceil(B /
        N), and so on. The last replicas may get tensors with 0 rows.

        Args:
            dataset: A `DataLoader`, an iterable or map-style `Dataset`, a list, or a generator
                function; its elements are nests of tensors, arrays or numbers. With one replica
                they need not be batches.
            options: How the data reach the replicas. Without, they are read ahead by one step where
                replicas are on GPUs.
            auto_shard_policy: What each of several workers reads. N is the number of replicas of
                all workers that step together.

        Returns:
            A `DistributedDataset`; under the default strategy `dataset` itself.

        Raises:
            InvalidTypeError: `dataset` is none, or can be read only once.
            InvalidArgumentError: An option or the policy has no meaning, there are fewer files than
                workers, or workers would shuffle differently.
            NotFoundError: Files are to be shared, but the dataset names none.
            UnimplementedError: Options ask for one dataset per replica, or workers that step alone
                are to share batches.

        Spec: STR-33, INP-1, INP-10 to INP-22, INP-27, INP-34.
        """
        return self._extended._distribute_dataset(dataset, options, auto_shard_policy)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> Any:
        """Deal the elements of the dataset that a function returns to the replicas.

        Each element is the batch of one replica. Replicas without data in the last step get tensors
        with 0 rows.

        Args:
            dataset_fn: Called now, once for each worker, or for each replica if options say so. It
                returns what `experimental_distribute_dataset` takes.
            options: How the data reach the replicas.

        Returns:
            A `DistributedDataset`; under the default strategy what `dataset_fn` returned.

        Raises:
            InvalidTypeError: `dataset_fn` is no function, or returns no dataset.
            InvalidArgumentError: Options contradict each other.

        Spec: STR-35, INP-2, INP-28, INP-31, INP-32, INP-35, INP-49d, INP-49e.
        """
        if not callable(dataset_fn):
            raise InvalidTypeError(
                "dataset_fn must be a function of an InputContext that returns a "
                f"dataset, not {type(dataset_fn).__name__}; a dataset of global "
                "batches is for experimental_distribute_dataset"
            )
        return self._extended._distribute_datasets_from_function(dataset_fn, options)

    def lookahead(self, data: Iterable[Any], rows: Lookups) -> Iterable[Any]:
        """Go over data, and have each push bring the rows that the next batch looks up.

            dataset = strategy.experimental_distribute_dataset(loader)
            for batch in strategy.lookahead(dataset, lambda batch: [(model.users, batch["user"])]):
                strategy.run(step, args=(batch,))

        A lookup in a table on parameter servers takes a round trip to them. Here the request that
        pushes a step also reads the rows of the next batch, as they are behind that step; a run
        with gradients finds the rows of its batch here. Rows that `rows` leaves out are pulled when
        they are looked up.

        With "async" consistency a step has each row as of the end of the step before, without what
        other workers have done since. With "bounded" and "sync", with pushes in flight, and behind
        a run that has stepped no table, a run begins by pulling all rows of its batch at once, so
        that its values are those of a loop without lookahead. Elsewhere than on parameter servers,
        this goes over the data and nothing else.

        Args:
            data: A distributed dataset, a loader, or an iterator. The position of an iterator over
                a distributed dataset counts the batches that were given out; of any other iterator,
                what was read ahead is given out by the next iteration over what this returns.
            rows: Called for what each replica gets of a batch. Returns what the step looks up in
                it, as `stratagem.nn.prefetch` takes that: pairs of an embedding, or its weight, and
                a tensor of rows or keys. What is no table on servers is left out.

        Returns:
            An iterable over the batches; each iteration is a pass over `data`. It has the length
            that the data have. An error of the data, or of `rows`, comes with the batch that it
            belongs to.

        Raises:
            InvalidTypeError: `data` cannot be iterated over, or `rows` is no function; or, with the
                batch, `rows` has returned something else.
            InvalidArgumentError: Another lookahead reads the same iterator, or the data know their
                own position, which would count what was read ahead. Or, with the batch, it was
                written since it was read.
            RowIndexError: With the run: there is no such row.
            ContextError: A replica is running, or another strategy is in charge.
        """
        require_cross_replica_or_default(cast("AnyExtended", self._extended), "lookahead")
        if not isinstance(data, Iterable):
            raise InvalidTypeError(
                f"lookahead goes over data, and {data!r:.100} cannot be gone over; give it a "
                "dataset, a loader or an iterator"
            )
        require_function("lookahead", rows)
        return self._extended._lookahead(data, rows)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a value for each replica of this process.

        Args:
            value_fn: Called for each, in order; returns a nest.

        Returns:
            The nest with `PerReplica` as leaves, which are not converted; under the default
            strategy what `value_fn` returned.

        Raises:
            InvalidArgumentError: The nests differ in structure.
            InvalidTypeError: `value_fn` is no function.

        Spec: STR-36, INP-5, INP-51, INP-52, VAL-10.
        """
        require_function("experimental_distribute_values_from_function", value_fn)
        return self._extended._distribute_values_from_function(value_fn)


_Element = TypeVar("_Element")


class ProgressMethods:
    """The part of `Strategy` that shows how training goes."""

    _extended: StrategyHooks

    def log(self, scalars: Mapping[str, float | torch.Tensor], step: int | None = None) -> None:
        """Show numbers of this program to whoever watches its training.

            strategy.log({"loss": loss, "rate": schedule.get_last_lr()[0]})

        The bar of `progress` shows the last value of each name, and sinks that `log_to` was given
        get all values. With parameter servers `stratagem dashboard` shows them as curves: servers
        are told the last values with the next heartbeat, three seconds later at most.

        A number on a GPU is on its way when this returns, and nobody waits for it but sinks.

        Args:
            scalars: Numbers, or tensors of one element, by their names: at most 32 different names
                in a program, of 1 to 100 characters each. Those of several replicas have to be
                reduced before.
            step: Their place on the axis, for sinks; by default the one after that of the call
                before, at first 0.

        Raises:
            InvalidArgumentError: A name is empty or too long, or there are too many names.
            InvalidTypeError: A value is no number, a name no string, or the step no integer.
            ContextError: One of several replicas is running.
        """
        self._require_one_voice()
        self._extended._scalars.log(scalars, step)

    def _require_one_voice(self) -> None:
        context = current_context()
        if context is None or context.replica_context is None:
            return
        replicas = self._extended._num_local_replicas
        if replicas > 1:
            raise ContextError(
                f"log was called in one of {replicas} replicas, each of which would log another "
                "number under the same name; return the number from the replica function, and log "
                "strategy.reduce(...) of it outside of strategy.run"
            )

    def log_to(self, sink: Sink) -> RemovableHandle:
        """Have a function called with all numbers that `log` is called with from now on.

            strategy.log_to(lambda step, scalars: mlflow.log_metrics(scalars, step=step))

        Only the task that `should_save_summary`, which is the chief, calls it; in others this does
        nothing, so that all may run the same program. It is called within `log`, in that thread,
        never twice at once, and training waits for it. What it raises is logged as a warning with
        the traceback, at its 1st failure, 10th, 100th and so on; training goes on, and it is called
        the next time.

        Args:
            sink: Called with the step and a dict of floats by name, which it may keep.

        Returns:
            Its `remove()` ends that.

        Raises:
            InvalidTypeError: `sink` is no function.
            FailedPreconditionError: A function that a coordinator has scheduled calls it.
        """
        if not callable(sink):
            raise InvalidTypeError(
                "log_to takes a function of a step and a dict of numbers, not "
                f"{type(sink).__name__}; for an object give its method that takes both"
            )
        if not self._extended.should_save_summary:
            return RemovableHandle(OrderedDict())
        return self._extended._scalars.add(sink)

    def progress(
        self, data: Iterable[_Element], total: int | None = None, **options: Any
    ) -> ProgressBar[_Element]:
        """Show a progress bar while a loop goes over data.

            for batch in strategy.progress(strategy.experimental_distribute_dataset(loader)):
                strategy.log({"loss": strategy.run(step, args=(batch,))})

        It shows steps by the second, the last numbers that `log` was called with, and with
        parameter servers how stale updates are: how many steps others finished while a worker took
        one, the mean over all asynchronous and bounded updates of the last seconds. Servers are
        asked for that every two seconds. Only the task that `should_save_summary`, which is the
        chief, shows a bar. Leaving the loop early closes it.

        Args:
            data: What to go over: a distributed dataset, a loader, a range.
            total: How many steps there are; by default the length of `data`, if it has one.
            options: Further ones of `tqdm`, such as `desc`, `initial` or `disable`.

        Returns:
            A `tqdm`, of the terminal or of the notebook.

        Raises:
            InvalidTypeError: `data` cannot be iterated over.
        """
        # Late: most programs show no bar.
        from stratagem._strategies.progress_bar import ProgressBar, figures_of

        if not isinstance(data, Iterable):
            raise InvalidTypeError(
                f"progress goes over data, and {data!r:.100} cannot be gone over"
            )
        hidden = not self._extended.should_save_summary
        options["disable"] = hidden or options.get("disable", False)
        return ProgressBar(data, figures_of(self, self._extended._scalars), total, **options)

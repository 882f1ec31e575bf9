"""The methods of strategies that show how training goes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from stratagem._core.contexts import current_context
from stratagem._core.scalars import Sink
from stratagem_proto.errors import ContextError, InvalidTypeError

if TYPE_CHECKING:
    from stratagem._strategies.hooks import StrategyHooks
    from stratagem._strategies.progress_bar import ProgressBar

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

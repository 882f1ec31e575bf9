"""Accelerate's loops on parameter servers.

Needs the package `accelerate`: `pip install 'stratagem[accelerate]'`.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem.frameworks._handover import adopt, distributed, input_of
from stratagem_proto.errors import InvalidArgumentError

try:
    import accelerate
    from accelerate.state import AcceleratorState, DistributedType, PartialState
except ImportError as error:
    raise ImportError(
        "Accelerate must be installed before its loops train on parameter servers: run "
        "`pip install 'stratagem[accelerate]'`"
    ) from error

__all__ = ["Accelerator"]


class Accelerator(accelerate.Accelerator):  # type: ignore[misc] # its types are not read
    """An `accelerate.Accelerator` that prepares models and optimizers for parameter servers.

        strategy = stratagem.ParameterServerStrategy()
        accelerator = Accelerator(strategy, gradient_accumulation_steps=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    Every worker runs the whole program on examples of its own (`stratagem.frameworks.part`), and
    for Accelerate each is a process by itself: `gather` and `reduce` return what they are given, as
    with one process. The chief is the main process, and `wait_for_everyone` waits for all workers.

    Args:
        strategy: The strategy, of one replica in this process.
        settings: The arguments of `accelerate.Accelerator` by name.

    Raises:
        InvalidArgumentError: Accelerate is to use several processes or a `GradScaler`.
    """

    def __init__(self, strategy: ParameterServerStrategy, **settings: Any) -> None:
        super().__init__(**settings)
        self._servers = strategy
        take_place(self, strategy)

    def prepare(self, *args: Any, **settings: Any) -> Any:
        """As Accelerate's, for models and optimizers in any order."""
        for each in args:
            if isinstance(each, nn.Module):
                adopt(self._servers, each)
        return super().prepare(*args, **settings)

    def prepare_model(self, model: nn.Module, *args: Any, **settings: Any) -> Any:
        """As Accelerate's; the model is adopted."""
        adopt(self._servers, model)
        return super().prepare_model(model, *args, **settings)

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> Any:
        """As Accelerate's; the servers have the state, wherever the model is."""
        if not getattr(optimizer, "_is_accelerate_prepared", False):
            optimizer = distributed(self._servers, optimizer)
        return super().prepare_optimizer(optimizer, device_placement=False)

    def wait_for_everyone(self) -> None:
        """Wait until all workers are here."""
        self._servers.barrier("accelerate")


def take_place(accelerator: accelerate.Accelerator, strategy: ParameterServerStrategy) -> None:
    """Let Accelerate take the chief alone for its main process, which prints and saves.

    Raises:
        InvalidArgumentError: It is to use several processes or a `GradScaler`.
    """
    if accelerator.distributed_type != DistributedType.NO:
        raise InvalidArgumentError(
            f"Accelerate runs {accelerator.num_processes} processes by "
            f"{accelerator.distributed_type}, which would each take the place of this worker; "
            "start each worker by itself, not by a launcher of processes, and set up no such plugin"
        )
    if accelerator.scaler is not None:
        raise InvalidArgumentError(
            f"mixed precision {accelerator.mixed_precision!r} steps by a GradScaler, which would "
            'leave out steps in one worker and not in the others; use "bf16"'
        )
    for state in PartialState(), AcceleratorState():
        state.process_index = state.local_process_index = input_of(strategy).input_pipeline_id

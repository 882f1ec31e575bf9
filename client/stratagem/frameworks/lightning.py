"""Lightning's `Trainer` on parameter servers.

Needs the package `lightning`: `pip install 'stratagem[lightning]'`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem.frameworks._handover import adopt, distributed, input_of, sole_device
from stratagem_proto.errors import InvalidArgumentError

try:
    from lightning.pytorch.strategies import SingleDeviceStrategy
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
except ImportError as error:
    raise ImportError(
        "Lightning must be installed before its Trainer trains on parameter servers: run "
        "`pip install 'stratagem[lightning]'`"
    ) from error

__all__ = ["OnServers"]


class OnServers(SingleDeviceStrategy):  # type: ignore[misc] # its types are not read
    """A strategy of Lightning that trains on parameter servers.

        strategy = stratagem.ParameterServerStrategy()
        trainer = lightning.Trainer(strategy=OnServers(strategy), max_epochs=5)
        trainer.fit(module, loader)

    Every worker runs the whole program on examples of its own (`stratagem.frameworks.part`), and
    for Lightning each is one process on one device: what is logged with `sync_dist=True` is this
    worker's. The chief alone saves, logs and shows progress; all workers resume from what it has
    saved. `fit` returns when all workers have trained.

    Args:
        strategy: The strategy, of one replica in this process, which is on its device.
        settings: The arguments of `lightning.pytorch.strategies.SingleDeviceStrategy` by name.
    """

    strategy_name = "parameter_servers"
    # Of Lightning's strategy.
    optimizers: Any

    def __init__(self, strategy: ParameterServerStrategy, **settings: Any) -> None:
        super().__init__(device=sole_device(strategy), **settings)
        self._servers = strategy
        self.global_rank: int = input_of(strategy).input_pipeline_id

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the chief."""
        return self.global_rank == 0

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """True: what is loaded counts, whatever the servers had."""
        return True

    def setup_environment(self) -> None:
        """As Lightning's; loggers and progress bars are the chief's."""
        rank_zero_only.rank = self.global_rank
        super().setup_environment()

    def _setup_model(self, model: nn.Module) -> nn.Module:
        adopt(self._servers, model)
        return model

    def setup_optimizers(self, trainer: Any) -> None:
        """As Lightning's; the servers take their steps and have their state.

        Raises:
            InvalidArgumentError: The precision needs a `GradScaler`.
        """
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise InvalidArgumentError(
                f"precision={self.precision_plugin.precision!r} steps by a GradScaler, which would "
                'leave out steps in one worker and not in the others; use "bf16-mixed"'
            )
        super().setup_optimizers(trainer)
        self.optimizers = [distributed(self._servers, each) for each in self.optimizers]
        for optimizer in self.optimizers:
            # It would have Lightning refuse to clip gradients, which nobody scales.
            optimizer._step_supports_amp_scaling = False

    def on_train_end(self) -> None:
        """Wait until all workers have trained."""
        self._servers.barrier("lightning")

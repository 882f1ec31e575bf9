"""The `Trainer` of Hugging Face's Transformers on parameter servers.

Needs the packages `accelerate` and `transformers`: `pip install 'stratagem[transformers]'`.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem.frameworks._handover import adopt, distributed, input_of
from stratagem_proto.errors import InvalidArgumentError

try:
    import transformers

    from stratagem.frameworks.accelerate import take_place
except ImportError as error:
    raise ImportError(
        "Transformers and Accelerate must be installed before a Trainer trains on parameter "
        "servers: run `pip install 'stratagem[transformers]'`"
    ) from error

__all__ = ["OnServers", "Trainer"]


class OnServers:
    """Has the `Trainer` that it is mixed into train on parameter servers.

    For trainers of your own::

        class MyTrainerOnServers(OnServers, MyTrainer):
            pass

    Every worker runs the whole program on examples of its own (`stratagem.frameworks.part`), and
    for Transformers each is a process by itself. The chief alone saves, logs and shows progress;
    all workers resume from what it has saved. `train()` returns when all workers have trained.

    Args:
        args: The arguments of the trainer.
        strategy: The strategy, of one replica in this process.
        settings: Those of the trainer by name.

    Raises:
        InvalidArgumentError: The trainer is to use several processes or a `GradScaler`, or each of
            several workers to load the checkpoint that is the best for it.
    """

    # What the mixin needs of the trainer.
    args: Any
    accelerator: Any
    model: nn.Module | None
    optimizer: Any

    def __init__(self, *args: Any, strategy: ParameterServerStrategy, **settings: Any) -> None:
        self._servers = strategy
        super().__init__(*args, **settings)
        if self.model is not None:
            adopt(strategy, self.model)

    def create_accelerator_and_postprocess(self) -> None:
        """As the trainer's; sees that it can be right."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        take_place(self.accelerator, self._servers)
        if self.args.load_best_model_at_end and input_of(self._servers).num_input_pipelines > 1:
            raise InvalidArgumentError(
                "load_best_model_at_end=True would load another checkpoint in each worker; "
                "leave it out, and load the chief's state.best_model_checkpoint after train()"
            )

    def create_optimizer(self, *args: Any, **settings: Any) -> Optimizer:
        """As the trainer's, of a model that is adopted; the servers have the state."""
        assert self.model is not None
        adopt(self._servers, self.model)
        made: Any = super().create_optimizer(*args, **settings)  # type: ignore[misc]
        if not getattr(made, "_is_accelerate_prepared", False):
            ours = distributed(self._servers, made)
            made = self.accelerator.prepare(ours, device_placement=[False])
        self.optimizer = made
        return made  # type: ignore[no-any-return]

    def train(self, *args: Any, **settings: Any) -> Any:
        """As the trainer's; returns when all workers have trained."""
        trained = super().train(*args, **settings)  # type: ignore[misc]
        self._servers.barrier("transformers")
        return trained

    def _save_checkpoint(self, *args: Any, **settings: Any) -> None:
        # Workers would write files of their own into the chief's checkpoint.
        if self.args.should_save:
            super()._save_checkpoint(*args, **settings)  # type: ignore[misc]


class Trainer(OnServers, transformers.Trainer):  # type: ignore[misc] # its types are not read
    """A `transformers.Trainer` that trains on parameter servers; see `OnServers`."""

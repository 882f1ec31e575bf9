"""The names of tensors in checkpoints that torch wrote, and their names here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import OPTIMIZERS, SlotName, names_optimizer


@dataclass(frozen=True)
class TorchNames:
    """Which tensors are taken, and their names here.

    Attributes:
        prefix: What the names of a model's tensors begin with, and a point, as in "model" of
            {"model": module.state_dict()}; "" takes all.
        optimizer_key: The same of an optimizer's state, as in "optim" of {"optim":
            get_optimizer_state_dict(module, optimizer)}; "" takes none.
        optimizer: The name of that optimizer here, such as "Adam".
    """

    prefix: str = ""
    optimizer_key: str = ""
    optimizer: str = ""

    def __post_init__(self) -> None:
        if self.optimizer_key and not names_optimizer(self.optimizer):
            raise InvalidArgumentError(
                f"no optimizer is called {self.optimizer!r}; its name is that of its "
                f"class, such as Adam, or Adam_1: {', '.join(OPTIMIZERS)}"
            )

    def chosen(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names here of those that are taken, by torch's names.

        Raises:
            InvalidArgumentError: State belongs to no tensor that is taken.
        """
        found = {name: own for name in names if (own := self._own(name)) is not None}
        model = {own for name, own in found.items() if not self._is_state(name)}
        for name in filter(self._is_state, found):
            variable = found[name].rsplit("/", 2)[0]
            if variable not in model:
                raise InvalidArgumentError(
                    f"{name!r} is state of {variable!r}, which is no tensor of the "
                    f"model under {self.prefix!r}. optimizer.state_dict() only numbers "
                    "its parameters: save what torch.distributed.checkpoint.state_dict."
                    "get_optimizer_state_dict(module, optimizer) returns, which names "
                    "them"
                )
        return found

    def _own(self, name: str) -> str | None:
        if self._is_state(name):
            start = len(f"{self.optimizer_key}.state.")
            variable, _, key = name[start:].rpartition(".")
            return str(SlotName(variable, self.optimizer, key))
        if self.optimizer_key and name.startswith(f"{self.optimizer_key}."):
            return None
        begin = f"{self.prefix}." if self.prefix else ""
        return name.removeprefix(begin) if name.startswith(begin) else None

    def _is_state(self, name: str) -> bool:
        key = self.optimizer_key
        return bool(key) and name.startswith(f"{key}.state.")

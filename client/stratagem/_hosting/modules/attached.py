"""The part of strategies whose modules and optimizers another program has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from stratagem._core.variables.creators import NextCreator
from stratagem._core.variables.variable import Variable
from stratagem._hosting.modules.adoption import Adoption
from stratagem._hosting.modules.extended import HostingExtended
from stratagem._hosting.modules.hosting import hosted_parameter
from stratagem._hosting.modules.state_dicts import keep_fresh
from stratagem_proto.errors import InvalidArgumentError

if TYPE_CHECKING:
    from stratagem.consistency import Consistency


class AttachedHostingExtended(HostingExtended):
    """A `HostingExtended` of a worker server.

    What it hosts comes from the program whose functions run there; the functions
    themselves make nothing. A subclass provides `_place_name()`.
    """

    _optimizer_name: str | None = None

    def _place_name(self) -> str:
        """Return what errors call this worker."""
        raise self._missing("_place_name")

    def attach_module(self, module: nn.Module) -> None:
        """Let the replicas see leaves and buffers of their own in a module.

        As where it was made, its `state_dict()` has the newest values.
        """
        for key, parameter in module._parameters.items():
            hosted = None if parameter is None else hosted_parameter(parameter)
            if hosted is not None:
                self._parameters.tie(hosted, [(module, key)])
        self._buffers.add([module])
        keep_fresh([module])

    @contextmanager
    def naming(self, optimizer: str) -> Iterator[None]:
        """Give the next optimizer the name that it has where it was made."""
        self._optimizer_name = optimizer
        try:
            yield
        finally:
            self._optimizer_name = None

    # What functions may not make.

    def _name_optimizer(
        self, class_name: str, consistency: Consistency | None = None
    ) -> str:
        if self._optimizer_name is None:
            raise self._creates_nothing(f"an optimizer, {class_name}")
        return self._optimizer_name

    def _create_variable(self, next_creator: NextCreator, **kwargs: Any) -> Variable:
        raise self._creates_nothing(f"a variable, {kwargs.get('name')!r}")

    def _host(self, adoptions: Sequence[Adoption]) -> None:
        raise self._creates_nothing(
            f"a module with parameters, {adoptions[0].module_path}"
        )

    def _creates_nothing(self, what: str) -> InvalidArgumentError:
        place = self._place_name()
        return InvalidArgumentError(
            f"{what}, was made under the strategy in a function that runs on {place}, "
            "where each call would make another one; make it in the program that sends "
            "the function, inside `with strategy.scope():`, and use it in the function",
            task=place,
        )

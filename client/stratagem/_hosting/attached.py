"""Modules and optimizers of another program, on a worker server."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import nn

from stratagem._hosting.hosting import Hosting, MadeElsewhere
from stratagem._hosting.modules.adoption import keep_fresh
from stratagem._hosting.modules.hosted_parameter import hosted_parameter
from stratagem_proto.errors import InternalError


class Attached:
    """What the program that sends functions has made, as these use it.

    Args:
        hosting: The strategy's, which was told that the program is elsewhere.
    """

    def __init__(self, hosting: Hosting) -> None:
        self._hosting = hosting

    def module(self, module: nn.Module) -> None:
        """Let the replicas see leaves and buffers of their own in a module.

        As where it was made, its `state_dict()` has the newest values.
        """
        for key, parameter in module._parameters.items():
            hosted = None if parameter is None else hosted_parameter(parameter)
            if hosted is not None:
                self._hosting.parameters.tie(hosted, [(module, key)])
        self._hosting.buffers.add([module])
        keep_fresh([module])

    def naming(self, optimizer: str) -> AbstractContextManager[None]:
        """Give the next optimizer the name that it has where it was made."""
        return self._elsewhere.naming(optimizer)

    @property
    def _elsewhere(self) -> MadeElsewhere:
        if self._hosting.elsewhere is None:
            raise InternalError("functions of another program run in their own")
        return self._hosting.elsewhere

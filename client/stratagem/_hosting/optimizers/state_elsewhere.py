"""What an optimizer has in place of its state, where that lives with the variables."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NoReturn

import torch

from stratagem_proto.errors import FailedPreconditionError


def refused(name: str) -> FailedPreconditionError:
    """Return the error for a change of the state of the optimizer with this name."""
    return FailedPreconditionError(
        f"the state of {name!r} lives with the variables of its strategy, and a change of "
        "optimizer.state would not reach it; change what optimizer.state_dict() returns, and "
        "hand it to optimizer.load_state_dict()"
    )


class _Refusing:
    """Methods that would change a dict; nobody would ever see the change."""

    _name: str

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise refused(self._name)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class _NoEntries(_Refusing, dict[str, Any]):
    """The state of one parameter."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name


class StateElsewhere(_Refusing, defaultdict[torch.Tensor, Any]):
    """An optimizer's state that is empty, and refuses to be changed.

    Like torch's own, it has something to read for each parameter.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __reduce__(self) -> tuple[type[StateElsewhere], tuple[str]]:
        return StateElsewhere, (self._name,)

    def copy(self) -> StateElsewhere:
        """Return one alike; that of `defaultdict` takes other arguments."""
        return StateElsewhere(self._name)

    __copy__ = copy

    def __missing__(self, parameter: torch.Tensor) -> dict[str, Any]:
        return _NoEntries(self._name)

"""Optimizers of torch without its compiler, until a program compiles something.

The first object of `torch.optim` would import it, to keep it out of some methods. That takes more
than a second of a core, and 70 MB; a worker whose servers take the steps needs it for nothing else.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

_METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
# Where torch looks for what it has made of such a method with the compiler.
_KEPT = "__dynamo_disable"


def defer_compiler() -> None:
    """Let methods of optimizers import the compiler no more; once it is there, they use it."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        plain = inspect.unwrap(method)
        if plain is not method and not hasattr(plain, _KEPT):
            setattr(plain, _KEPT, _deferred(method, plain))


def _deferred(method: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return plain(*args, **kwargs)
        if vars(plain).get(_KEPT) is call:
            vars(plain).pop(_KEPT, None)
        return method(*args, **kwargs)

    # The compiler leaves it alone, as it would what it makes of the method.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call

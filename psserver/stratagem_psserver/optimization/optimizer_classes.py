"""The optimizers of PyTorch without what they do for `torch.compile`."""

from __future__ import annotations

from functools import cache
from inspect import unwrap

from torch.optim import Optimizer

from stratagem_proto.optimizers import OptimizerRule

_GUARDED = ("step", "add_param_group")


@cache
def without_compiler(rule: OptimizerRule) -> type[Optimizer]:
    """Return the class of a rule, to step under `torch.no_grad()`.

    The original imports the compiler with its first object: 1.4 to 1.8 s of processor
    time and 70 MB in each server process.
    """
    methods = {name: unwrap(getattr(rule.cls, name)) for name in _GUARDED}
    return type(rule.cls.__name__, (rule.cls,), methods)

"""Lets torch functions through to the recording, except what would go past it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stratagem._tracing.numbers import is_traced
from stratagem._tracing.source import refused

_Tensor = torch.Tensor
_CONTENTS = {
    _Tensor.numpy: ".numpy()",
    _Tensor.tolist: ".tolist()",
    _Tensor.item: ".item()",
    _Tensor.data_ptr: ".data_ptr()",
    _Tensor.untyped_storage: ".untyped_storage()",
    _Tensor.__array__: "a conversion to a numpy array",
    _Tensor.__bool__: "a branch (or bool())",
    _Tensor.__complex__: "complex()",
    _Tensor.__contains__: "the operator 'in'",
    _Tensor.__deepcopy__: "copy.deepcopy()",
    _Tensor.__dlpack__: "a conversion by DLPack",
    _Tensor.__float__: "float()",
    _Tensor.__index__: "an index (or range())",
    _Tensor.__int__: "int()",
    _Tensor.__reduce_ex__: "pickling",
}


class Gate(TorchFunctionMode):
    """While it is entered, what reveals or replaces a tensor's contents is refused.

    Args:
        replace: Gives the stand-in for an argument that should have one.
    """

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        _check(func)
        if getattr(func, "__self__", None) is torch.Tensor.grad:
            # Another tensor, which the stand-in does not have.
            return func(*args)
        keywords = {name: self._opened(one) for name, one in (kwargs or {}).items()}
        if func in (torch.tensor, torch.as_tensor) and args and is_traced(args[0]):
            return torch.full((), args[0], dtype=keywords.get("dtype"))
        return func(*map(self._opened, args), **keywords)

    def _opened(self, argument: Any) -> Any:
        if type(argument) in (tuple, list):
            return type(argument)(self._opened(item) for item in argument)
        return self._replace(argument)


def _check(func: Callable[..., Any]) -> None:
    name = getattr(func, "__name__", str(func))
    if func in _CONTENTS:
        raise refused(
            f"{_CONTENTS[func]} needs the contents of a tensor, which exist only on the server",
            "use tensor operations such as torch.where, or pass what is known before "
            "as an argument",
        )
    if name == "__set__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "attribute")
        raise refused(
            f"the {attribute!r} of a tensor is assigned, which servers do not see",
            "write a variable with assign(), or in place with copy_()",
        )

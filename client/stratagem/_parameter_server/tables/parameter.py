"""Parameters whose rows are on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.utils._pytree import tree_map_only

from stratagem._parameter_server.tables import lookup
from stratagem._parameter_server.tables.initial_rows import InitialRows
from stratagem._parameter_server.tables.row_values import WholeValue
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


class RowSource(lookup.RowSource, Protocol):
    """Where the values of a table are."""

    @property
    def is_dense(self) -> bool:
        """Whether all rows are stored there, written or not."""
        ...

    @property
    def is_readable(self) -> bool:
        """Whether the table is small enough to be read whole."""
        ...

    def read_whole(self) -> Tensor:
        """Return the whole value, detached, on the CPU."""
        ...

    def replace(self, value: Tensor) -> None:
        """Write the whole value."""
        ...


class TableParameter(Parameter):
    """A parameter of which nothing is here but its shape.

    `F.embedding` and `F.embedding_bag` pull the rows that they need, wherever the parameter is used
    with them. Any other use takes the whole value, which is read for that if the table is small
    enough. What is written goes to the servers. Gradients are here: `grad` is like that of
    `nn.Embedding(sparse=True)`.

    Args:
        shape: Its shape.
        dtype: The type of its elements.
        requires_grad: Whether gradients are wanted.

    Attributes:
        initial: What it starts with: its value, or what servers are to make.
        source: Where its values are, once they are.
    """

    initial: Tensor | InitialRows | None
    source: RowSource | None

    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, requires_grad: bool = True
    ) -> TableParameter:
        """Make one without values, which takes the memory of one element."""
        nothing = torch.zeros((), dtype=dtype)
        if dtype.is_floating_point:
            nothing.fill_(torch.nan)
        made = Tensor._make_subclass(cls, nothing.expand(tuple(shape)), requires_grad)
        made.initial = made.source = None
        return made

    def __init__(self, *args: object) -> None:
        """There is nothing left to do."""

    @classmethod
    def of(cls, source: RowSource, like: TableParameter) -> TableParameter:
        """Return another one for the same values."""
        made = cls(like.shape, like.dtype, like.requires_grad)
        made.source = source
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        table = args[0] if args else None
        if func in _LOOKUPS:
            return _LOOKUPS[func](*args, **kwargs)
        if isinstance(table, TableParameter):
            if func in _ABOUT or _is_about(func):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if name in _MOVES:
                return table._moved(name, args[1:], kwargs)
            if name in _LIKE:
                return table._like(func, args[1:], kwargs)
            if _writes(name):
                return table._written(func, args[1:], kwargs)
        whole = tree_map_only(TableParameter, TableParameter.whole, (args, kwargs))
        return func(*whole[0], **whole[1])

    def whole(self) -> Tensor:
        """Return the value as a plain tensor, differentiable if that is wanted."""
        value = self._whole_value()
        if self.requires_grad and torch.is_grad_enabled():
            with torch._C.DisableTorchFunctionSubclass():
                found: Tensor = WholeValue.apply(self, value)  # type: ignore[no-untyped-call] # of torch
            return found
        return value

    def _whole_value(self) -> Tensor:
        if isinstance(self.initial, Tensor):
            return self.initial
        if self.source is None:
            raise InvalidArgumentError(
                f"a table of shape {tuple(self.shape)} has no values before its scope "
                "closes; initialise it in the module's __init__"
            )
        return self.source.read_whole()

    @property
    def data(self) -> Tensor:
        """The parameter without its gradient; what is written to it is kept."""
        detached = TableParameter(self.shape, self.dtype, False)
        detached.source, detached.initial = self.source, self.initial
        return detached

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, TableParameter):
            self._replace(value)

    def _replace(self, value: Tensor) -> None:
        if self.source is None:
            self.initial = value.detach().cpu()
        else:
            self.source.replace(value.detach().cpu())

    def _written(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Tensor:
        if self.requires_grad and torch.is_grad_enabled():
            raise InvalidTypeError(
                "a parameter that requires gradients is written; torch allows that "
                "only under torch.no_grad()"
            )
        value = self._whole_value().clone()
        func(value, *args, **kwargs)
        self._replace(value)
        return self

    def _moved(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """The parameter itself: its values are on servers, whatever the device."""
        with torch._C.DisableTorchFunctionSubclass():
            wanted = getattr(torch.empty(0, dtype=self.dtype), name)
            dtype = wanted(*_without_devices(args), **_without_device(kwargs)).dtype
        if dtype != self.dtype:
            raise InvalidTypeError(
                f"a table on parameter servers is {self.dtype} and cannot become "
                f"{dtype}; give the module its dtype before the scope closes"
            )
        return self

    def _like(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Tensor:
        if self.source is None or not self.source.is_readable:
            kwargs["device"] = "meta"
        elif func is torch.full_like and not self.source.is_dense:
            # What some optimizers make when they are built, and is never written:
            # the state of such rows is beside them.
            one = torch.full_like(torch.empty((), dtype=self.dtype), *args, **kwargs)
            return one.expand(self.shape)
        with torch._C.DisableTorchFunctionSubclass():
            found: Tensor = func(self, *args, **kwargs)
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Return a plain parameter of the same value."""
        copied = Parameter(self._whole_value().clone(), self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Pickle as a plain parameter of the same value."""
        return Parameter, (self._whole_value(), self.requires_grad)

    def __repr__(self) -> str:  # type: ignore[override] # has no contents to show
        return (
            f"TableParameter(shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"requires_grad={self.requires_grad})"
        )


_LOOKUPS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.embedding: lookup.embedding,
    functional.embedding_bag: lookup.embedding_bag,
}

_MOVES = {"to", "cpu", "cuda", "float", "double", "half", "bfloat16", "contiguous"}
_LIKE = {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like"}
_LIKE |= {"randn_like", "new_empty", "new_zeros", "new_ones", "new_full"}

# What says something about a tensor, and does not look at its elements.
_ABOUT = {
    Tensor.__len__,
    Tensor.backward,
    Tensor.data_ptr,
    Tensor.dim,
    Tensor.element_size,
    Tensor.get_device,
    Tensor.is_complex,
    Tensor.is_contiguous,
    Tensor.is_floating_point,
    Tensor.is_shared,
    Tensor.is_signed,
    Tensor.ndimension,
    Tensor.nelement,
    Tensor.numel,
    Tensor.register_hook,
    Tensor.register_post_accumulate_grad_hook,
    Tensor.requires_grad_,
    Tensor.retain_grad,
    Tensor.size,
    Tensor.storage_offset,
    Tensor.stride,
    Tensor.type,
    Tensor.untyped_storage,
    torch.is_complex,
    torch.is_floating_point,
    torch.numel,
}
_VALUES = {"T", "mT", "H", "mH", "real", "imag"}


def _is_about(func: Callable[..., Any]) -> bool:
    """Whether it reads or sets an attribute that is not made of the elements."""
    if func.__name__ not in ("__get__", "__set__", "__delete__"):
        return False
    owner = getattr(func, "__self__", None)
    return getattr(owner, "__name__", "") not in _VALUES


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name == "__setitem__" or name.startswith("__i")


def _without_devices(args: Sequence[Any]) -> list[Any]:
    return [one for one in args if isinstance(one, torch.dtype | Tensor)]


def _without_device(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: kwargs[key] for key in ("dtype",) if key in kwargs}

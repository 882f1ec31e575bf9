"""Parameters whose rows are on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor
from torch.nn import Parameter, functional, init
from torch.utils._pytree import tree_map_only

from stratagem._parameter_server.tables import lookup
from stratagem._parameter_server.tables.lookup import WholeValue
from stratagem._parameter_server.tables.recording import InitialRows
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
    enough. What is written goes to the servers, also what is written to a view, such as
    `weight.data[0]`; `detach()` returns a copy. Gradients are here: `grad` is like that of
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
    def another(cls, source: RowSource, like: TableParameter) -> TableParameter:
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
            if func is Tensor.detach:
                return table._whole_value().detach()
            if func in _ABOUT or _is_about(func):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if name in _MOVES:
                return table._moved(name, args[1:], kwargs)
            if name in _LIKE:
                return table._like(func, args[1:], kwargs)
            if _writes(name):
                return table._written(func, args[1:], kwargs)
        return _on_whole_values(func, args, kwargs)

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
        self._require_writable()
        given = args[0] if args else None
        if func is Tensor.copy_ and type(given) is Tensor and given.shape == self.shape:
            # As load_state_dict() does; nothing of the old value is needed.
            self._replace(given.to(self.dtype))
            return self
        value = self._whole_value().clone()
        func(value, *args, **kwargs)
        self._replace(value)
        return self

    def _require_writable(self) -> None:
        if self.requires_grad and torch.is_grad_enabled():
            raise InvalidTypeError(
                "a parameter that requires gradients is written; torch allows that "
                "only under torch.no_grad()"
            )

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


class TableView(Tensor):
    """A part of a table's value, or all of it, as it was read: what is written to it is kept.

    Attributes:
        table: The parameter whose value it is of.
        whole: The value that was read, of which this is a view.
    """

    table: TableParameter
    whole: Tensor

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        is_own = func in _ABOUT or _is_about(func)
        if is_own and args and isinstance(args[0], TableView):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return _on_whole_values(func, args, kwargs or {})

    @classmethod
    def show(cls, value: Tensor, table: TableParameter, whole: Tensor) -> TableView:
        """Return a view of a value that was read whole."""
        made: TableView = value.as_subclass(cls)
        made.table, made.whole = table, whole
        return made

    def plain(self) -> Tensor:
        """Return a plain tensor of the same memory."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor)


def _on_whole_values(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call a function with plain values in place of tables and their views; keep what it writes."""
    # Functions of torch.nn.init turn gradients off themselves.
    of_init = getattr(func, "__module__", "") == init.__name__
    with torch.no_grad() if of_init else nullcontext():
        values = _PlainValues(func, kwargs)
        plain = tree_map_only((TableParameter, TableView), values.plain_value, (args, dict(kwargs)))
        found = func(*plain[0], **plain[1])
        values.keep_writes()
    if isinstance(found, numpy.ndarray):
        # Nobody would see what is written to it.
        found.flags.writeable = False
    return tree_map_only(Tensor, values.shown, found)


class _Plain(NamedTuple):
    """What one call of a function has in place of a table or a view.

    Attributes:
        given: The table or the view.
        view: The view, or one of the whole table.
        value: The plain tensor.
        version: torch's count of the writes to it, before the call.
    """

    given: TableParameter | TableView
    view: TableView
    value: Tensor
    version: int


class _PlainValues:
    """The plain values of tables and views that one call of a function is given."""

    def __init__(self, func: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self._name = getattr(func, "__name__", "")
        self._says_so = _writes(self._name) or kwargs.get("out") is not None
        self._values: list[_Plain] = []

    def plain_value(self, given: TableParameter | TableView) -> Tensor:
        """Return the value of a table or a view, the same one each time."""
        for one in self._values:
            if one.given is given:
                return one.value
        if isinstance(given, TableParameter):
            whole = given.whole()
            view = TableView.show(whole, given, whole)
        else:
            view = given
            if self._says_so and not view.whole.requires_grad:
                # The table may have been trained since.
                view.whole.copy_(view.table._whole_value())
        value = view.plain()
        self._values.append(_Plain(given, view, value, value._version))
        return value

    def keep_writes(self) -> None:
        """Give tables what was written to their values."""
        written = [one for one in self._values if one.value._version != one.version]
        are_apart = len({id(one.view.table.source) for one in written}) == len(written)
        for one in written:
            one.view.table._require_writable()
            is_fresh = self._says_so or isinstance(one.given, TableParameter)
            if one.view.whole.requires_grad or not (is_fresh and are_apart):
                raise InvalidTypeError(
                    f"{self._name} writes a table on parameter servers through a view in a way "
                    "that cannot be followed: one view at a time may be written, taken of "
                    "parameter.data, by the functions of torch whose name ends with _, by an "
                    "assignment or out="
                )
        for one in written:
            one.view.table._replace(one.view.whole)

    def shown(self, result: Tensor) -> Tensor:
        """Return what the caller gets for a tensor that the function returned."""
        if type(result) is not Tensor or result.layout is not torch.strided:
            return result
        storage = result.untyped_storage()._cdata
        for one in self._values:
            if result is one.value:
                return one.given
            if one.value.untyped_storage()._cdata == storage:
                return TableView.show(result, one.view.table, one.view.whole)
        return result


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
_VALUES = {"T", "mT", "H", "mH", "real", "imag", "data"}


@lru_cache(maxsize=1024)
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

"""Seeing large allocations of a scope: no memory, and recorded initial values."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stratagem._core.contexts.context import current_replica_id
from stratagem._parameter_server.tables.initial_rows import (
    Constant,
    Distribution,
    InitialRows,
    Normal,
    Uniform,
)

_aten = torch.ops.aten
_thread = threading.local()


@dataclass
class _Allocation:
    """A tensor without memory; it keeps its storage alive, and so recognisable."""

    tensor: torch.Tensor
    rows: InitialRows = field(default_factory=InitialRows)


class AllocationRecorder(TorchFunctionMode):
    """Sends what modules allocate by `torch.empty` to the meta device if it is large.

    What takes `above` bytes at most still gets memory. Writes to tensors without memory are
    recorded in place of being done. It sees the thread that entered it by `with`, outside of
    replicas.
    """

    def __init__(self, above: float) -> None:
        super().__init__()
        self._above = above
        self._allocations: dict[int, _Allocation] = {}
        self._writes = _Writes(self._allocations)

    def __enter__(self) -> AllocationRecorder:
        _recorders().append(self)
        super().__enter__()  # type: ignore[no-untyped-call] # of torch
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call] # of torch
        _recorders().remove(self)

    @contextmanager
    def taking_all(self) -> Iterator[None]:
        """Leave every allocation without memory, however small."""
        above, self._above = self._above, -1
        try:
            yield
        finally:
            self._above = above

    def initial_rows(self, tensor: torch.Tensor) -> InitialRows | None:
        """Return the initial values of a tensor; None if it is none of these."""
        found = self._allocations.get(_storage(tensor)) if tensor.is_meta else None
        return None if found is None else found.rows

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty:
            return self._allocated(args, kwargs)
        # torch.nn.init passes its tensor by name.
        first = args[0] if args else kwargs.get("tensor")
        if isinstance(first, torch.Tensor) and first.is_meta:
            with self._writes:
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _allocated(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not _is_plain(kwargs) or current_replica_id() is not None:
            return torch.empty(*args, **kwargs)
        found = torch.empty(*args, **{**kwargs, "device": "meta"})
        if found.nbytes <= self._above or not _in_construction():
            return torch.empty(*args, **kwargs)
        self._allocations[_storage(found)] = _Allocation(found)
        return found


def current_recorder() -> AllocationRecorder | None:
    """Return the recorder of this thread's innermost scope, None without one."""
    recorders = _recorders()
    return recorders[-1] if recorders else None


def _recorders() -> list[AllocationRecorder]:
    if not hasattr(_thread, "recorders"):
        _thread.recorders = []
    recorders: list[AllocationRecorder] = _thread.recorders
    return recorders


def _is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Whether nothing but ordinary memory of the CPU is asked for."""
    device = kwargs.get("device")
    on_cpu = device is None or torch.device(device).type == "cpu"
    return on_cpu and not kwargs.get("pin_memory") and kwargs.get("out") is None


def _in_construction() -> bool:
    """Whether a module is being made; what else allocates memory needs it."""
    frame = inspect.currentframe()
    while frame is not None:
        self = frame.f_locals.get("self")
        if frame.f_code.co_name == "__init__" and isinstance(self, nn.Module):
            return True
        frame = frame.f_back
    return False


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Writes(TorchDispatchMode):
    """Records writes to tensors without memory; all else is carried out."""

    def __init__(self, allocations: Mapping[int, _Allocation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of torch
        self._allocations = allocations

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        found = None
        if _writes(func, args):
            found = self._allocations.get(_storage(args[0]))
        if found is None:
            return func(*args, **kwargs)
        given = _arguments(func, args, kwargs)
        found.rows = _written(found, args[0], func, given)
        return args[0]


def _writes(func: Any, args: Sequence[Any]) -> bool:
    first = func._schema.arguments[0] if func._schema.arguments else None
    written = first is not None and first.alias_info and first.alias_info.is_write
    return bool(written) and isinstance(args[0], torch.Tensor)


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    defaults = {one.name: one.default_value for one in schema}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


def _written(
    allocation: _Allocation, target: torch.Tensor, func: Any, given: Mapping[str, Any]
) -> InitialRows:
    distribution = _distribution(func, given)
    if distribution is None:
        return allocation.rows.without(f"{func}")
    if target.numel() == allocation.tensor.numel():
        return InitialRows(distribution)
    row = _row_of(target, allocation.tensor)
    second = allocation.rows.zero_row not in (None, row)
    if distribution != Constant(0.0) or row is None or second:
        return allocation.rows.without(f"{func} on a part of it")
    return replace(allocation.rows, zero_row=row)


def _distribution(func: Any, given: Mapping[str, Any]) -> Distribution | None:
    match func:
        case _aten.normal_.default:
            return Normal(float(given["mean"]), float(given["std"]))
        case _aten.uniform_.default:
            return Uniform(float(given["from"]), float(given["to"]))
        case _aten.zero_.default:
            return Constant(0.0)
        case _aten.fill_.Scalar:
            return Constant(float(given["value"]))
    return None


def _row_of(part: torch.Tensor, whole: torch.Tensor) -> int | None:
    """Number of the row that a view is, None if it is something else."""
    columns = math.prod(whole.shape[1:])
    if part.numel() != columns or not columns:
        return None
    row, rest = divmod(int(part.storage_offset()), columns)
    return None if rest or not part.is_contiguous() else row

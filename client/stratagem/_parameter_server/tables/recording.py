"""Large allocations of a scope: no memory, and initial values that servers make."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn import init
from torch.overrides import TorchFunctionMode
from torch.utils import swap_tensors
from torch.utils._pytree import tree_leaves, tree_map_only

from stratagem._core.contexts import current_replica_id
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.variable_pb2 import (
    Initializer,
    NormalShape,
    TruncatedNormalShape,
    UniformRange,
)

_SEED_MASK = 2**64 - 1


@dataclass(frozen=True)
class Constant:
    """Elements that are all the same."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Evenly distributed elements."""

    low: float
    high: float


@dataclass(frozen=True)
class Normal:
    """Normally distributed elements."""

    mean: float
    std: float


@dataclass(frozen=True)
class TruncatedNormal:
    """Normally distributed elements, drawn again while they are out of bounds."""

    mean: float
    std: float
    low: float
    high: float


Distribution = Constant | Uniform | Normal | TruncatedNormal


def _field(distribution: Distribution) -> dict[str, Any]:
    """Return the field of an `Initializer` that says so."""
    match distribution:
        case Constant(value):
            return {"constant": value}
        case Uniform(low, high):
            return {"uniform": UniformRange(low=low, high=high)}
        case Normal(mean, std):
            return {"normal": NormalShape(mean=mean, std=std)}
        case TruncatedNormal(mean, std, low, high):
            shape = TruncatedNormalShape(mean=mean, std=std, low=low, high=high)
            return {"truncated_normal": shape}


def _fill(
    tensor: torch.Tensor, distribution: Distribution, generator: torch.Generator | None
) -> None:
    match distribution:
        case Constant(value):
            tensor.fill_(value)
        case Uniform(low, high):
            tensor.uniform_(low, high, generator=generator)
        case Normal(mean, std):
            tensor.normal_(mean, std, generator=generator)
        case TruncatedNormal(mean, std, low, high):
            init.trunc_normal_(tensor, mean, std, low, high, generator)


@dataclass(frozen=True)
class InitialRows:
    """The rows of a table before they are written.

    Attributes:
        distribution: What the elements are; None where that was not seen.
        zero_row: A row that is zero all the same; None for none.
        seed: That of the generator that was given; None for torch's own.
        obstacle: An operation on the values that servers cannot repeat; "" for none.
    """

    distribution: Distribution | None = None
    zero_row: int | None = None
    seed: int | None = None
    obstacle: str = ""

    def without(self, operation: str) -> InitialRows:
        """Return these rows after an operation that servers cannot repeat."""
        return replace(self, obstacle=self.obstacle or operation)

    def initializer(self) -> Initializer:
        """Return what tells servers to make them, with torch's seed or the generator's."""
        seed = torch.initial_seed() if self.seed is None else self.seed
        assert self.distribution is not None
        field = _field(self.distribution)
        return Initializer(seed=seed & _SEED_MASK, zero_row=self.zero_row, **field)

    def made_here(self, like: torch.Tensor) -> torch.Tensor:
        """Return such values, made in this process, with the shape and dtype of `like`."""
        # A scope that is open in the __init__ of a module would defer this memory, too.
        with torch._C.DisableTorchFunction():
            made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
            seed = None if self.seed is None else self.seed & _SEED_MASK
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            if self.distribution is not None:
                _fill(made, self.distribution, generator)
            if self.zero_row is not None:
                made[self.zero_row] = 0
        return made

    def require_possible(self, what: str) -> None:
        """Refuse initial values that servers cannot repeat."""
        if self.obstacle or self.distribution is None:
            by = f", by {self.obstacle}" if self.obstacle else ""
            raise InvalidArgumentError(
                f"{what} has no memory here, and parameter servers cannot repeat how it is "
                f"initialised{by}; {REMEDY}"
            )


REMEDY = (
    "initialise it in place by normal_, trunc_normal_, uniform_, constant_, zeros_, ones_, "
    "xavier_* or kaiming_* of torch.nn.init, or give it memory: by a larger meta_above in "
    "scope(), and in place of stratagem.nn.Embedding by torch.nn.Embedding(sparse=True)"
)
"""What to do about an operation that needs the memory of a parameter that has none."""


_aten = torch.ops.aten
_thread = threading.local()


class AllocationRecorder(TorchFunctionMode):
    """Defers what modules allocate by `torch.empty` if it is large.

    What takes `above` bytes at most still gets memory. It sees the thread that entered it by
    `with`, outside of replicas.
    """

    def __init__(self, above: float) -> None:
        super().__init__()
        self._above = above

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

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and _is_plain(kwargs) and current_replica_id() is None:
            meta = torch.empty(*args, **{**kwargs, "device": "meta"})
            module = _module_in_construction() if meta.nbytes > self._above else None
            if module is not None:
                return DeferredTensor(_Record(meta, type(module).__name__), meta)
        return func(*args, **kwargs)


def current_recorder() -> AllocationRecorder | None:
    """Return the recorder of this thread's innermost scope, None without one."""
    recorders = _recorders()
    return recorders[-1] if recorders else None


@contextmanager
def of_keys() -> Iterator[None]:
    """Scope of this thread in which all gets memory but the weight of a `DynamicEmbedding`."""
    before, _thread.are_keys_taken = _takes_keys(), True
    try:
        yield
    finally:
        _thread.are_keys_taken = before


def _takes_keys() -> bool:
    return getattr(_thread, "are_keys_taken", False)


def taking_keys() -> AbstractContextManager[object] | None:
    """Return what the weight of a `DynamicEmbedding` is allocated in; None outside of a scope."""
    recorder = current_recorder()
    if recorder is not None:
        return recorder.taking_all()
    return AllocationRecorder(-1) if _takes_keys() else None


def _recorders() -> list[AllocationRecorder]:
    if not hasattr(_thread, "recorders"):
        _thread.recorders = []
    recorders: list[AllocationRecorder] = _thread.recorders
    return recorders


def _is_plain(kwargs: Mapping[str, Any]) -> bool:
    """Whether nothing but ordinary memory of the CPU is asked for."""
    device = kwargs.get("device")
    on_cpu = device is None or torch.device(device).type == "cpu"
    is_strided = kwargs.get("layout") in (None, torch.strided)
    special = ("pin_memory", "out", "names")
    return on_cpu and is_strided and not any([kwargs.get(one) is not None for one in special])


def _module_in_construction() -> nn.Module | None:
    """Return the module that is being made; what else allocates memory needs it."""
    frame = inspect.currentframe()
    while frame is not None:
        self = frame.f_locals.get("self")
        if frame.f_code.co_name == "__init__" and isinstance(self, nn.Module):
            return self
        frame = frame.f_back
    return None


@dataclass
class _Record:
    """What became of one allocation.

    Attributes:
        meta: A tensor of its shape on the meta device.
        module: The class of the module that allocated it.
        rows: Its values so far.
        owner: What its values were given to; "" while they may still be written.
    """

    meta: torch.Tensor
    module: str
    rows: InitialRows = field(default_factory=InitialRows)
    owner: str = ""


class DeferredTensor(torch.Tensor):
    """What a module has allocated in a scope, without memory: what is written is recorded.

    It says that it is on the CPU. Functions that initialise parameters leave out those on the meta
    device, and nothing that is left out can be recorded or refused. All operations of torch come
    here, in whatever thread and at whatever place of their arguments it stands. Those that would
    read elements raise; views share its record.

    Args:
        record: What it is of.
        meta: A tensor of its shape, strides and dtype on the meta device.
    """

    _record: _Record
    _meta: torch.Tensor

    @staticmethod
    def __new__(cls, record: _Record, meta: torch.Tensor) -> DeferredTensor:
        """Make one that has the metadata of `meta`."""
        made: DeferredTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            meta.size(),
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=torch.device("cpu"),
            requires_grad=meta.requires_grad,
        )
        made._record, made._meta = record, meta.detach()
        return made

    def __init__(self, *args: object) -> None:
        """There is nothing left to do."""

    @property
    def data(self) -> torch.Tensor:
        """The tensor without its gradient; what is written to it is recorded, too."""
        return DeferredTensor(self._record, self._meta)

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        # From now on it is the other one, which may have memory.
        other = value.detach()
        if isinstance(self, nn.Parameter):
            other = nn.Parameter(other, self.requires_grad)
        swap_tensors(self, other)

    def __repr__(self) -> str:  # type: ignore[override] # has no contents to show
        return f"DeferredTensor(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        initialiser = _initialiser()
        if initialiser is not None:
            for one in tree_leaves((args, kwargs)):
                if isinstance(one, DeferredTensor):
                    one._initialised_by(initialiser)
            if func == _IS_META:
                # It is recorded or refused as a whole, so that there is nothing left to do.
                return True
        if func.__name__ in _OF_MEMORY:
            found = next(one for one in tree_leaves(args) if isinstance(one, DeferredTensor))
            raise found._refusal(f"torch.Tensor.{func.__name__}")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # of torch, which has none to override
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = _arguments(func, args, kwargs or {})
        returned = [one.alias_info for one in func._schema.returns]
        written = [
            given[one.name]
            for one in func._schema.arguments
            if one.alias_info is not None and one.alias_info.is_write
        ]
        returns_it = len(returned) <= 1 and all([one and one.is_write for one in returned])
        if len(written) == 1 and isinstance(written[0], DeferredTensor) and returns_it:
            written[0]._write(func, given)
            return written[0] if returned else None
        every = tree_leaves(given)
        first = next(one for one in every if isinstance(one, DeferredTensor))
        is_view = bool(returned) and all([one and not one.is_write for one in returned])
        if written or not (is_view or func._overloadpacket.__name__ in _OF_SHAPE):
            raise first._refusal(str(func))
        found = func(*_on_meta(args), **_on_meta(kwargs or {}))
        if not is_view:
            return found
        return tree_map_only(torch.Tensor, lambda meta: DeferredTensor(first._record, meta), found)

    def _write(self, func: Any, given: Mapping[str, Any]) -> None:
        """Record an operation that writes it."""
        initialiser = _initialiser()
        if initialiser is not None:
            self._initialised_by(initialiser)
        else:
            self._set(_distribution(func, given), _seed(given.get("generator")), str(func))

    def _initialised_by(self, initialiser: FrameType) -> None:
        """Record a call of a function of torch.nn.init that does more than fill."""
        name, given = initialiser.f_code.co_name, initialiser.f_locals
        distribution = None
        if name == "trunc_normal_" and given.keys() >= {"mean", "std", "a", "b"}:
            numbers = [float(given[one]) for one in ("mean", "std", "a", "b")]
            distribution = TruncatedNormal(*numbers)
        self._set(distribution, _seed(given.get("generator")), f"torch.nn.init.{name}")

    def _set(self, distribution: Distribution | None, seed: int | None, operation: str) -> None:
        record, meta = self._record, self._meta
        if record.owner:
            raise self._refusal(operation)
        if not meta.numel():
            return
        if distribution is None:
            record.rows = record.rows.without(operation)
        elif self._is_whole():
            record.rows = InitialRows(distribution, seed=seed)
        else:
            columns = math.prod(record.meta.shape[1:])
            row, rest = divmod(int(meta.storage_offset()), max(1, columns))
            is_row = meta.numel() == columns and not rest and meta.is_contiguous()
            is_only = meta.dtype == record.meta.dtype and record.rows.zero_row in (None, row)
            if is_row and is_only and distribution == Constant(0.0):
                record.rows = replace(record.rows, zero_row=row)
            else:
                record.rows = record.rows.without(f"{operation} on a part of it")

    def _is_whole(self) -> bool:
        """Whether it has each element of what was allocated once, in whatever order."""
        meta, whole, expected = self._meta, self._record.meta, 1
        for stride, size in sorted(zip(meta.stride(), meta.shape, strict=True)):
            if size > 1 and stride != expected:
                return False
            expected *= size
        return meta.dtype == whole.dtype and meta.numel() == whole.numel()

    def _refusal(self, operation: str) -> InvalidArgumentError:
        record = self._record
        what = f"a tensor of shape {tuple(record.meta.shape)} that {record.module} allocated"
        if record.owner:
            return InvalidArgumentError(
                f"{operation} of {what}, whose values became those of {record.owner}; use the "
                "parameter of the module, and write it rather than tensors that share its memory"
            )
        return InvalidArgumentError(
            f"{operation} needs the elements of {what}, which has no memory here, since parameter "
            f"servers make its values when the scope closes; {REMEDY}"
        )


def taken_rows(tensor: torch.Tensor, what: str) -> InitialRows | None:
    """Return the initial values of a tensor, which becomes `what`; None if it has memory.

    Raises:
        InvalidArgumentError: Servers cannot repeat them, or another parameter shares them.
    """
    if not isinstance(tensor, DeferredTensor):
        return None
    record = tensor._record
    rows = record.rows
    if record.owner:
        rows = rows.without(f"sharing memory with {record.owner}")
    elif not tensor._is_whole() or (
        rows.zero_row is not None and tensor._meta.shape != record.meta.shape
    ):
        rows = rows.without("taking a part of another tensor")
    rows.require_possible(what)
    record.owner = what
    return rows


def give_memory(modules: Iterable[nn.Module]) -> None:
    """Make the buffers of modules that have no memory, with their initial values.

    Raises:
        InvalidArgumentError: How they are initialised is not known.
    """
    for module in modules:
        for name, buffer in module._buffers.items():
            if isinstance(buffer, DeferredTensor):
                rows = buffer._record.rows
                what = f"buffer {name!r} of {type(module).__name__}"
                if rows.obstacle or buffer._record.owner or not buffer._is_whole():
                    rows.without("taking a part of another tensor").require_possible(what)
                swap_tensors(buffer, rows.made_here(buffer))


def _distribution(func: Any, given: Mapping[str, Any]) -> Distribution | None:
    """Return what an operation of torch fills a tensor with; None if it does anything else."""
    match func:
        case _aten.normal_.default:
            return Normal(float(given["mean"]), float(given["std"]))
        case _aten.uniform_.default:
            return Uniform(float(given["from"]), float(given["to"]))
        case _aten.zero_.default:
            return Constant(0.0)
        case _aten.fill_.Scalar:
            return Constant(float(given["value"]))
        case _aten.fill_.Tensor | _aten.copy_.default:
            value = given["value"] if func is _aten.fill_.Tensor else given["src"]
            if value.numel() == 1 and not value.is_meta and not isinstance(value, DeferredTensor):
                return Constant(float(value))
    return None


_FILLS = {"constant_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "uniform_"}
_FILLS |= {"xavier_normal_", "xavier_uniform_", "zeros_"}
"""Functions of torch.nn.init that do nothing but one operation of torch that fills a tensor."""


def _initialiser() -> FrameType | None:
    """Return the call of torch.nn.init that runs, unless it is one that only fills.

    The tensor alone does not say what such a function is about to do, or that a release of torch
    has one that nobody here knows.
    """
    found, frame = None, inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_name
        if frame.f_globals is vars(init) and not name.startswith("_") and hasattr(init, name):
            found = frame
        frame = frame.f_back
    return None if found is None or found.f_code.co_name in _FILLS else found


def _seed(generator: torch.Generator | None) -> int | None:
    return None if generator is None else generator.initial_seed()


def _arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name, defaults included."""
    schema = func._schema.arguments
    defaults = {one.name: one.default_value for one in schema}
    names = [one.name for one in schema]
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _on_meta(arguments: Any) -> Any:
    return tree_map_only(DeferredTensor, lambda one: one._meta, arguments)


_IS_META = vars(torch._C.TensorBase)["is_meta"].__get__

# What gives out the memory of a tensor, or copies it, without an operation of torch.
_OF_MEMORY = {"__array__", "__dlpack__", "__reduce_ex__", "_typed_storage", "data_ptr", "numpy"}
_OF_MEMORY |= {"share_memory_", "storage", "tolist", "untyped_storage"}

# What does not look at the elements.
_OF_SHAPE = {"empty_like", "full_like", "is_pinned", "is_same_size", "new_empty", "new_full"}
_OF_SHAPE |= {"new_empty_strided", "new_ones", "new_zeros", "ones_like", "rand_like"}
_OF_SHAPE |= {"randint_like", "randn_like", "zeros_like"}

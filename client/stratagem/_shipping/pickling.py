"""Pickles of functions and what they take, whose classes they are, and what of a value has none."""

from __future__ import annotations

import io
import math
import pickle
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from inspect import Parameter, getclosurevars, signature
from threading import RLock
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakValueDictionary

import torch
from cloudpickle import cloudpickle
from torch import Tensor

from stratagem_proto.errors import InvalidTypeError, StratagemError
from stratagem_proto.wire.tensors import as_bytes

_DYNAMIC = "<dynamic-code>"
"""What cloudpickle puts in place of a file's name, from 3.1.3 on."""


def _reduced(code: CodeType) -> tuple[Any, ...]:
    making, parts = cloudpickle._code_reduce(code)
    return making, tuple(code.co_filename if part == _DYNAMIC else part for part in parts)


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc] # has no types
    """Pickles as cloudpickle does, with the files that code is in."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduced})


def dumps(value: object) -> bytes:
    """Return a pickle of a value, which `pickle.loads` reads.

    Raises:
        Exception: What came of pickling it.
    """
    buffer = io.BytesIO()
    CodePickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def dump_exception(error: BaseException) -> bytes:
    """Return the pickle of an exception, which can be read again.

    Raises:
        Exception: What came of pickling it, or of reading the pickle: exceptions exist that are
            pickled well and cannot be read.
    """
    pickled = dumps(error)
    Unpickler(pickled, SessionClasses()).load()
    return pickled


def words_of(error: BaseException) -> str:
    """Return what an exception says; classes exist that fail to."""
    try:
        return str(error)
    except Exception as failure:
        return f"its text could not be made ({type(failure).__name__})"


# cloudpickle has one class for an identity in a process, and sets its attributes again whenever a
# pickle of it is read. So a program whose worker server is in its own process would get the methods
# of the worker, with the worker's strategy in their globals; and one that reads a result would get
# copies of its own methods, with copies of globals. Hence `Classes`.
_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")
_SETTER = "_class_setstate"

_SHORT = 1 << 10
"""Bytes of a pickle up to which it pays to look for classes before reading it."""


class Classes(ABC):
    """The classes that a reader has, by the identity that cloudpickle gives them."""

    @abstractmethod
    def known(self, identity: str) -> type | None:
        """Return the class of an identity, None if there is none yet."""

    @abstractmethod
    def add(self, identity: str, made: type) -> None:
        """Take in a class that was made because none was known."""

    @abstractmethod
    def changes(self, known: type) -> bool:
        """Return whether a class becomes what a pickle says of it."""


class SessionClasses(Classes):
    """The classes that one program has sent to a worker so far."""

    def __init__(self) -> None:
        self._classes: WeakValueDictionary[str, type] = WeakValueDictionary()

    def known(self, identity: str) -> type | None:
        return self._classes.get(identity)

    def add(self, identity: str, made: type) -> None:
        self._classes[identity] = made
        # What comes of them is of the program's class again, where that is read.
        with cloudpickle._DYNAMIC_CLASS_TRACKER_LOCK:
            cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[made] = identity

    def changes(self, known: type) -> bool:
        return True


_MAKING = RLock()
"""Held while a value is read that has classes of the program, or makes some."""


class ProgramClasses(Classes):
    """The classes of the program, which stay as they are while one value is read.

    To be closed when that is read: until then, a class may not have its attributes yet, and other
    threads wait for it.
    """

    def __init__(self) -> None:
        self._made: set[type] = set()
        self._held = ExitStack()

    def close(self) -> None:
        """Let other threads have what was made."""
        self._held.close()

    def known(self, identity: str) -> type | None:
        self._held.enter_context(_MAKING)
        found: type | None = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identity)
        return found

    def add(self, identity: str, made: type) -> None:
        cloudpickle._lookup_class_or_track(identity, made)
        self._made.add(made)

    def changes(self, known: type) -> bool:
        return known in self._made


class Unpickler(pickle.Unpickler):
    """Reads what `Pickler` writes, and other pickles of cloudpickle.

    Args:
        payload: The pickle.
        classes: The classes that the reader has.
        find: Returns what has a handle; None where nothing has one.
    """

    def __init__(
        self, payload: bytes, classes: Classes, find: Callable[[int], Any] | None = None
    ) -> None:
        super().__init__(io.BytesIO(payload))
        self._classes, self._find = classes, find

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name == _object_of.__name__ and self._find is not None:
            return self._find
        found = super().find_class(module, name)
        if module != cloudpickle.__name__:
            return found
        if name in _MAKERS:
            return self._making_by(found)
        return self._set_state if name == _SETTER else found

    def _making_by(self, make: Callable[..., type]) -> Callable[..., type]:
        def known_or_made(*about: Any) -> type:
            *about_it, identity, extra = about
            known = self._classes.known(identity)
            if known is None:
                known = make(*about_it, None, extra)
                self._classes.add(identity, known)
            return known

        return known_or_made

    def _set_state(self, known: type, state: Any) -> Any:
        if self._classes.changes(known):
            cloudpickle._class_setstate(known, state)
        return known


def read_by_program(payload: bytes) -> Any:
    """Return a value from a worker; of classes that are the program's, its own."""
    if len(payload) < _SHORT and _SETTER.encode() not in payload:
        return pickle.loads(payload)
    with closing(ProgramClasses()) as classes:
        return Unpickler(payload, classes).load()


ATOMS = {bool, int, str, bytes, type(None)}
_MAPPINGS = {dict, OrderedDict}
_SEQUENCES = {list, tuple}

_DEEPEST = 4
_LARGEST_TENSOR = 1 << 16
"""Bytes; a larger one is pickled instead of being kept twice."""


def mark_of(value: Any, name: Callable[[Any], int | None], depth: int = 0) -> object:
    """Return what is equal for equal values only; None if there is no such thing.

    `name` returns the handle of an object, None for what travels by value. `depth` counts the
    containers that the value is in.
    """
    cls = type(value)
    if cls in ATOMS:
        return cls, value
    if cls is float:
        # Zeros of either sign are equal, but not the same.
        return cls, value.hex()
    if depth > _DEEPEST:
        return None  # maybe it contains itself
    if cls in _MAPPINGS:
        items = [mark_of(item, name, depth + 1) for item in value.items()]
        return None if None in items else (cls, *items)
    if cls in _SEQUENCES:
        items = [mark_of(item, name, depth + 1) for item in value]
        return None if None in items else (cls, *items)
    if is_plain_tensor(value):
        return _mark_of_tensor(value)
    handle = name(value)
    return None if handle is None else ("handle", handle)


def _mark_of_tensor(value: Any) -> object:
    if value.nbytes > _LARGEST_TENSOR:
        return None
    about = value.dtype, tuple(value.shape), value.requires_grad, value.device.type
    return *about, bytes(as_bytes(value))


Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def is_plain_tensor(value: object) -> bool:
    """Return whether something is a dense tensor, and not of a subclass."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and not value.is_quantized
        and value.device.type in ("cpu", "cuda")
    )


def reduced_tensor(tensor: Tensor) -> Reduced:
    """Return what pickle is to make of a dense tensor: its elements alone.

    torch would pickle all of the storage of a view. One on a GPU comes to the current GPU of the
    other side, or to the CPU where there is none.
    """
    shape, device = tuple(tensor.shape), tensor.device.type
    content = bytearray(as_bytes(tensor))
    return _rebuilt, (content, tensor.dtype, shape, tensor.requires_grad, device)


def _rebuilt(
    content: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> Tensor:
    # torch takes no empty buffers.
    flat = torch.frombuffer(content or bytearray(dtype.itemsize), dtype=dtype)
    made = flat[: math.prod(shape)].reshape(shape)
    if device == "cuda" and torch.cuda.is_available():
        made = made.to("cuda")
    return made.requires_grad_(requires_grad)


def partial_of(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
) -> partial[Any]:
    """Return a partial function; pickles of the class itself set attributes."""
    return partial(function, *args, **keywords)


Name = Callable[[Any], "int | None"]
"""Returns the handle of an object, None for what travels by value."""


class Pickler(CodePickler):
    """Writes values one by one: functions and classes as cloudpickle does.

    What modules have that others can import is named, in `__main__` it is contained.
    """

    def __init__(self, name: Name) -> None:
        self._buffer = io.BytesIO()
        self._name = name
        super().__init__(self._buffer, protocol=5)

    def write(self, value: object) -> bytes:
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            self.dump(value)
            return self._buffer.getvalue()
        finally:
            # It would keep alive what it has written.
            self.clear_memo()

    def reducer_override(self, value: Any) -> Any:
        # What cloudpickle itself calls to read a pickle; it would look for each of these in its
        # module.
        if getattr(value, "__module__", None) == cloudpickle.__name__:
            return NotImplemented
        handle = self._name(value)
        if handle is not None:
            return _object_of, (handle,)
        cls = type(value)
        if cls is Tensor and is_plain_tensor(value):
            return reduced_tensor(value)
        if cls is partial and not value.__dict__:
            return partial_of, (value.func, value.args, value.keywords)
        return super().reducer_override(value)

    def _dynamic_function_reduce(self, func: FunctionType) -> tuple[Any, ...]:
        made_of, state = self._function_getnewargs(func), _state_of(func)
        making, setting = cloudpickle._make_function, cloudpickle._function_setstate
        return making, made_of, state, None, None, setting


@lru_cache(maxsize=1024)
def _submodules(code: CodeType, packages: tuple[ModuleType, ...], loaded: int) -> list[ModuleType]:
    """Return the submodules of packages that code may use while so many modules are loaded."""
    found: list[ModuleType] = cloudpickle._find_imported_submodules(code, packages)
    return found


def _submodules_used(code: CodeType, used: Iterable[object]) -> list[ModuleType]:
    packages = tuple([one for one in used if isinstance(one, ModuleType)])
    return _submodules(code, packages, len(sys.modules)) if packages else []


# What cloudpickle makes of a function, but for its longest part: to look through all that is loaded
# for submodules that the function may need.
_state_of = FunctionType(
    cloudpickle._function_getstate.__code__,
    {**vars(cloudpickle), "_find_imported_submodules": _submodules_used},
)


def _object_of(handle: int) -> NoReturn:
    """Stand in pickles for `find` of the `Unpickler` that reads them."""
    raise NotImplementedError(f"only an Unpickler knows what has handle {handle}")


_LONGEST_PATH = 50
"""Values may contain themselves."""

Write = Callable[[object], object]
"""Pickles a value, or fails."""


class _Step(NamedTuple):
    """The way from a value to a part of it.

    Attributes:
        expression: In Python, as in ".lock" or "[0]".
        function: The function that uses the part, if it is that of one.
    """

    expression: str
    function: str = ""


def refusal(value: object, what: str, write: Write, error: Exception) -> Exception:
    """Return the error of what cannot be pickled, which says what of it cannot.

    The message calls the value `what`. `write` fails for each part that cannot be pickled.
    """
    steps: list[_Step] = []
    while len(steps) < _LONGEST_PATH and (found := _failing(value, write, error)):
        step, value, error = found
        steps.append(step)
    return InvalidTypeError(
        f"{what} cannot be sent between a program and its workers: "
        f"{_path(steps)} is {described(value)}, which cannot be pickled ({error}). "
        "Make it inside the function, or pass what it is made of"
    )


def _failing(
    value: object, write: Write, reason: Exception
) -> tuple[_Step, object, Exception] | None:
    """Return the first part of a value that cannot be pickled by itself."""
    parts = _parts(value)
    if parts is None:
        # What is refused on purpose may not be looked into.
        refused = isinstance(reason, StratagemError)
        parts = iter(()) if refused else _items(".{}", getattr(value, "__dict__", {}))
    for step, part in parts:
        try:
            write(part)
        except Exception as error:
            return step, part, error
    return None


def _path(steps: Sequence[_Step]) -> str:
    """Return the path to a part, as in "loader.lock in function 'train_step'"."""
    path = place = ""
    for step in steps:
        if step.function:
            path, place = "", f" in function {step.function!r}"
        path += step.expression
    return f"{path.removeprefix('.') or 'it'}{place}"


def described(value: object) -> str:
    """Return what errors call a value: the name of its class."""
    cls = type(value)
    prefix = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"a {prefix}{cls.__qualname__}"


def _parts(value: Any) -> Iterator[tuple[_Step, object]] | None:
    """Return what a function or a container has in it; None for other things."""
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return iter([(_Step(".__self__"), value.__self__)])
    if isinstance(value, partial):
        names = "func", "args", "keywords"
        return _items(".{}", {name: getattr(value, name) for name in names})
    if isinstance(value, Mapping):
        return _items("[{!r}]", value)
    if isinstance(value, list | tuple | set | frozenset):
        return _items("[{}]", dict(enumerate(value)))
    return None


def _items(form: str, parts: Mapping[Any, object]) -> Iterator[tuple[_Step, object]]:
    return ((_Step(form.format(key)), part) for key, part in parts.items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[_Step, object]]:
    used = getclosurevars(function)
    for name, part in {**used.nonlocals, **used.globals}.items():
        yield _Step(name, function.__qualname__), part
    for name, parameter in signature(function).parameters.items():
        if parameter.default is not Parameter.empty:
            yield _Step(name, function.__qualname__), parameter.default

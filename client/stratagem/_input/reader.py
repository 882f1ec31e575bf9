"""Reading a dataset once: from its beginning or where it was left, and ahead of its use."""

from __future__ import annotations

import atexit
import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from stratagem._core.nests import leaves, map_leaves, opened
from stratagem._core.replica_threads import TorchState
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError


class NumpyDataset(Dataset[Any]):
    """The rows of a nest of arrays, which is copied.

    Batch it by a `DataLoader`, then distribute that; distributed as it is, each replica gets one
    row a step.

    Args:
        numpy_input: A nest of arrays of shape [rows, ...]. A list counts as one array that has its
            items as rows, not as a structure.

    Raises:
        InvalidArgumentError: The arrays differ in their numbers of rows, or have none.

    Spec: INP-50.
    """

    def __init__(self, numpy_input: Any) -> None:
        self._columns = _columns(numpy_input)
        sizes = sorted({len(column) for column in leaves(self._columns)})
        if len(sizes) != 1:
            raise InvalidArgumentError(
                f"The arrays of a dataset must have the same number of rows, not {sizes}"
            )
        self._size = sizes[0]

    def batched(self, size: int) -> DataLoader[Any]:
        """Return batches of `size` rows, in their order; the last may be smaller."""
        return DataLoader(self, size)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        """Return row `index` of each array, in the structure of the input."""
        if not -self._size <= index < self._size:
            raise IndexError(f"row {index} of a dataset that has {self._size}")
        return map_leaves(lambda column: column[index], self._columns)


def _columns(nest: Any) -> Any:
    node = None if isinstance(nest, list) else opened(nest)
    if node is not None:
        return node.rebuild([_columns(child) for child in node.children])
    array = np.array(nest)
    if not array.ndim:
        raise InvalidArgumentError(
            f"{nest!r} has no rows; a dataset is made of arrays of shape [rows, ...]"
        )
    return array if array.dtype.kind in "USO" else torch.from_numpy(array)


_NUMERIC_KINDS = frozenset("biufc")


def as_tensors(element: Any) -> Any:
    """Return `element` with numbers and NumPy arrays as tensors.

    Strings have no tensors: a list of them, which is what collating makes of a batch, becomes a
    NumPy array of objects, so that it can be split by rows as well.

    Args:
        element: A nest of tensors, arrays, numbers, strings or other objects.

    Spec: INP-24, INP-41.
    """
    is_sequence = type(element) in (list, tuple) and element
    if is_sequence and all(isinstance(item, str | bytes) for item in element):
        return np.array(element, dtype=object)
    node = opened(element)
    if node is not None:
        return node.rebuild([as_tensors(child) for child in node.children])
    if isinstance(element, np.ndarray) and element.dtype.kind in _NUMERIC_KINDS:
        # A tensor takes the same memory where it can.
        usable = element.flags.writeable and min(element.strides, default=0) >= 0
        return torch.from_numpy(element if usable else element.copy())
    if isinstance(element, np.number | np.bool_ | bool | int | float | complex):
        return torch.as_tensor(element)
    return element


State = Mapping[str, Any]
"""Where a reader stands: the number of "elements" read, and where the dataset knows its own
position the state of that "loader"."""


@runtime_checkable
class StatefulDataset(Protocol):
    """A dataset, loader or iterator that knows its own position."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


def is_dataset(value: Any) -> bool:
    """Return whether `value` is a loader, a dataset or another collection."""
    if isinstance(value, str | bytes | Mapping | torch.Tensor | np.ndarray | Iterator):
        return False
    return is_iterable(value) or is_map_style(value)


def check_dataset(dataset: Any, origin: str) -> None:
    """Check that `dataset` can be read, again and again.

    Args:
        dataset: A loader, an iterable or map-style dataset, a list, or a function without arguments
            that makes an iterator, such as a generator function.
        origin: Where it comes from, for the message.

    Raises:
        InvalidTypeError: It is something else. Spec: INP-26.
    """
    if isinstance(dataset, Iterator):
        raise InvalidTypeError(
            f"{origin} is {dataset!r}, which can be read only once; pass the function "
            "that makes it instead"
        )
    if not (is_dataset(dataset) or callable(dataset)):
        raise InvalidTypeError(
            f"{origin} must be a DataLoader, a Dataset, a list of batches or a "
            f"generator function, not {type(dataset).__name__}; a tensor becomes a "
            "dataset by TensorDataset"
        )


def is_iterable(dataset: Any) -> bool:
    """Return whether a dataset gives its elements one after the other."""
    return hasattr(type(dataset), "__iter__")


def is_map_style(dataset: Any) -> bool:
    """Return whether a dataset has a length, and elements by number."""
    kind = type(dataset)
    return hasattr(kind, "__getitem__") and hasattr(kind, "__len__")


def length(dataset: Any) -> int | None:
    """Return how many elements `dataset` has, None if it does not say."""
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


class Reader(Iterator[Any]):
    """One pass over a dataset; it gives elements with tensors as leaves.

    Args:
        dataset: What `check_dataset` lets pass.
        state: A position to go on from: what `state_dict` returned. A dataset that knows its own
            position goes there by itself; of others that many elements are skipped, so they have to
            come in the same order again.
    """

    def __init__(self, dataset: Any, state: State | None = None) -> None:
        position: State = {"elements": 0} if state is None else state
        self._read = int(position["elements"])
        self._ended = False
        if "loader" in position:
            self._elements = _restored(dataset, position["loader"])
        else:
            self._elements = _opened(dataset, self._read)
        self._stateful = _stateful(dataset) or _stateful(self._elements)
        self._returned: deque[tuple[Any, State]] = deque()
        self._state: State | None = None

    def __next__(self) -> Any:
        if self._returned:
            element, self._state = self._returned.popleft()
            self._read += 1
            return element
        if self._ended:
            raise StopIteration
        try:
            element = next(self._elements)
        except StopIteration:
            self._ended = True
            raise
        self._read += 1
        self._state = None
        return as_tensors(element)

    def state_dict(self) -> State:
        """Return where this reader stands."""
        if self._state is not None:
            return self._state
        if self._stateful is None:
            return {"elements": self._read}
        # It may show what changes as the loader reads on.
        loader = copy.deepcopy(self._stateful.state_dict())
        return {"elements": self._read, "loader": loader}

    def take_back(self, taken: Iterable[tuple[Any, State]]) -> None:
        """Give elements once more, each with the state behind it: all that were read so far."""
        self._returned.extend(taken)
        self._read = 0


def _stateful(value: Any) -> StatefulDataset | None:
    # A class of iterators has the methods too, but for its instances.
    known = isinstance(value, StatefulDataset) and not isinstance(value, type)
    return value if known else None


def _opened(dataset: Any, start: int) -> Iterator[Any]:
    """Return an iterator over `dataset` from the element `start` on."""
    iterable = is_iterable(dataset)
    if isinstance(dataset, list | tuple) or (is_map_style(dataset) and not iterable):
        return map(dataset.__getitem__, range(start, len(dataset)))
    elements: Iterator[Any] = iter(dataset if iterable else _made_by(dataset))
    deque(islice(elements, start), maxlen=0)
    return elements


def _made_by(function: Callable[[], Any]) -> Any:
    made = function()
    if not is_iterable(made):
        raise InvalidTypeError(
            f"{function!r} is used as a dataset, but returned {type(made).__name__}; "
            "let it return an iterator, or make it a generator function"
        )
    return made


def _restored(dataset: Any, loader_state: Any) -> Iterator[Any]:
    """Return an iterator over `dataset`, which knows its position, from there on."""
    loader = _stateful(dataset)
    if loader is not None:
        loader.load_state_dict(loader_state)
        return _opened(dataset, 0)
    elements = _opened(dataset, 0)
    reader = _stateful(elements)
    if reader is None:
        raise InvalidArgumentError(
            f"The state has the position of a loader, but {dataset!r} has no "
            "load_state_dict to go there; use the loader that the state was saved with"
        )
    reader.load_state_dict(loader_state)
    return elements


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _Failed:
    """Reading an item has raised."""

    error: BaseException


class Peekable(Iterator[_Item], Generic[_Item]):
    """The items of `items`, of which some may be read before their turn.

    An error of `items`, and their end, come where they would have come without that.

    Args:
        items: What to read.

    Attributes:
        taken: How many items were taken, those that failed included.
    """

    def __init__(self, items: Iterator[_Item]) -> None:
        self._items = items
        self._waiting: deque[_Item | _Failed] = deque()
        self._has_ended = False
        self.taken = 0

    def __next__(self) -> _Item:
        self._read()
        if not self._waiting:
            raise StopIteration
        self.taken += 1
        item = self._waiting.popleft()
        if isinstance(item, _Failed):
            raise item.error
        return item

    def peek(self, place: int) -> tuple[_Item] | None:
        """Return the item that comes after `place` others; None behind an error or the end."""
        while len(self._waiting) <= place:
            if self._has_ended or (self._waiting and isinstance(self._waiting[-1], _Failed)):
                return None
            self._read(place + 1)
        item = self._waiting[place]
        return None if isinstance(item, _Failed) else (item,)

    def _read(self, wanted: int = 1) -> None:
        """Read one item, unless there are as many as are wanted or the items have ended."""
        if len(self._waiting) >= wanted or self._has_ended:
            return
        try:
            self._waiting.append(next(self._items))
        except StopIteration:
            self._has_ended = True
        except Exception as error:
            self._waiting.append(_Failed(error))


# How long the end of the program waits for reads that are under way, in seconds.
_EXIT_SECONDS = 5.0


class _Ended:
    """There are no more items."""


class _ReaderThread(threading.Thread, Generic[_Item]):
    """The thread; it knows nothing of the one who takes the items."""

    def __init__(self, items: Iterator[_Item], depth: int) -> None:
        super().__init__(name="stratagem-input", daemon=True)
        self.taken: SimpleQueue[_Item | _Failed | _Ended] = SimpleQueue()
        self.free = threading.Semaphore(depth)
        self._items = items
        self._stopped = False
        self._torch_state = TorchState.capture()

    def stop(self) -> None:
        """Read nothing more; a read that is under way goes to its end."""
        self._stopped = True
        self.free.release()

    def run(self) -> None:
        with self._torch_state.applied():
            while self.free.acquire() and not self._stopped:
                outcome = self._outcome()
                self.taken.put(outcome)
                if isinstance(outcome, _Ended):
                    return

    def _outcome(self) -> _Item | _Failed | _Ended:
        try:
            return next(self._items)
        except StopIteration:
            return _Ended()
        except BaseException as error:
            # What follows an error is for the items to say, so reading goes on.
            return _Failed(error)


class ReadAhead(Iterator[_Item]):
    """The items of `items`, read by a thread before they are asked for.

    The thread starts with the first item that is asked for, sees the errors of `items` to the one
    who asks, and stops when this object is dropped.

    Args:
        items: What to read.
        depth: How many items may wait.
    """

    def __init__(self, items: Iterator[_Item], depth: int) -> None:
        self._reading = _ReaderThread(items, depth)
        self._ended = False

    def __next__(self) -> _Item:
        if self._ended:
            raise StopIteration
        if not self._reading.ident:
            self._start()
        outcome = self._reading.taken.get()
        self._reading.free.release()
        if isinstance(outcome, _Ended):
            self._ended = True
            raise StopIteration
        if isinstance(outcome, _Failed):
            raise outcome.error
        return outcome

    def _start(self) -> None:
        self._reading.start()
        _running.add(self._reading)
        weakref.finalize(self, self._reading.stop).atexit = False


_running: weakref.WeakSet[_ReaderThread[Any]] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop reading before the interpreter is taken apart under the threads."""
    for reading in list(_running):
        reading.stop()
    for reading in list(_running):
        reading.join(_EXIT_SECONDS)


atexit.register(_stop_all)

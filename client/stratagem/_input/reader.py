"""Reading a dataset once, from its beginning or from where it was left."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from stratagem._core.nests import opened
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError

_NUMERIC_KINDS = frozenset("biufc")


def as_tensors(element: Any) -> Any:
    """Return `element` with numbers and NumPy arrays as tensors.

    Strings have no tensors: a list of them, which is what collating makes of a batch, becomes a
    NumPy array of objects, so that it can be split by rows as well.

    Args:
        element: A nest of tensors, arrays, numbers, strings or other objects.

    Spec: INP-24, INP-41.
    """
    if _is_strings(element):
        return np.array(element, dtype=object)
    node = opened(element)
    if node is None:
        return _as_tensor(element)
    return node.rebuild([as_tensors(child) for child in node.children])


def _is_strings(value: Any) -> bool:
    if type(value) not in (list, tuple) or not value:
        return False
    return all(isinstance(item, str | bytes) for item in value)


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in _NUMERIC_KINDS:
        return torch.from_numpy(_shareable(leaf))
    if isinstance(leaf, np.number | np.bool_ | bool | int | float | complex):
        return torch.as_tensor(leaf)
    return leaf


def _shareable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose memory a tensor can use, if possible the same."""
    usable = array.flags.writeable and min(array.strides, default=0) >= 0
    return array if usable else array.copy()


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

"""Which classes are of which kind."""

from __future__ import annotations

from stratagem._shipping.remote_objects.kinds import Kind
from stratagem._shipping.remote_objects.remote_object import RemoteObject

# A program may make classes without end, and drop them with all that they have.
_MOST_KNOWN = 1 << 10


class KindTable(dict[type, "Kind | type[RemoteObject] | None"]):
    """By class, of which kind its instances may be; None for what travels by value.

    A dict, because each object that is pickled is looked up here.

    Args:
        kinds: Those that there are.
    """

    def __init__(self, *kinds: Kind) -> None:
        super().__init__()
        self.kinds = kinds

    def __missing__(self, cls: type) -> Kind | type[RemoteObject] | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        fitting = (kind for kind in self.kinds if issubclass(cls, kind.types))
        found = RemoteObject if issubclass(cls, RemoteObject) else next(fitting, None)
        self[cls] = found
        return found

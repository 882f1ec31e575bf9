"""Where checkpoints are kept: folders of a file system, and stores of objects.

`store` has what checkpoints need of either; `local` and `objects` are the two implementations.
"""

from __future__ import annotations

from typing import Any

from stratagem_storage.stores.local import LocalStore
from stratagem_storage.stores.objects import ObjectStore
from stratagem_storage.stores.places import Place, StoreUrl
from stratagem_storage.stores.store import Store


def store_of(place: Place) -> Store[Any]:
    """Return the store that a place is in."""
    return ObjectStore() if isinstance(place, StoreUrl) else LocalStore()

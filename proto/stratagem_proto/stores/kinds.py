"""Which store a place is in."""

from __future__ import annotations

from typing import Any

from stratagem_proto.stores.local_store import LocalStore
from stratagem_proto.stores.object_store import ObjectStore
from stratagem_proto.stores.places import Place, StoreUrl
from stratagem_proto.stores.store import Store


def store_of(place: Place) -> Store[Any]:
    """Return the store that a place is in."""
    return ObjectStore() if isinstance(place, StoreUrl) else LocalStore()

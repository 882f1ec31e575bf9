"""All kinds of objects that stay on workers, for the workers that load them."""

from __future__ import annotations

from stratagem._remote_objects.modules import COORDINATOR_KINDS
from stratagem._shipping.kinds import ObjectKind
from stratagem._tpu.session import HOST_KINDS

KINDS: dict[str, ObjectKind] = {
    kind.name: kind for kind in (*COORDINATOR_KINDS.kinds, *HOST_KINDS.kinds)
}
"""The kinds by their names."""

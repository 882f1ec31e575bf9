"""Which pods reach which, as the network policies of an overlay have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.deploy.manifests.pods import Pod
from tests.deploy.manifests.rendering import Manifest
from tests.deploy.manifests.tasks import of_kind, selects


def reaches(overlay: str, source: Pod, target: Pod, port: int) -> bool:
    """Whether a pod reaches a port of another one by TCP.

    Policies add to each other; a pod of which none speaks may do everything.
    """
    out, into = _about(overlay, source, "Egress"), _about(overlay, target, "Ingress")
    leaves = not out or any(_allows(rule, "to", target, port) for rule in _rules(out, "egress"))
    enters = not into or any(
        _allows(rule, "from", source, port) for rule in _rules(into, "ingress")
    )
    return leaves and enters


def _about(overlay: str, pod: Pod, kind: str) -> list[Manifest]:
    specs = (policy["spec"] for policy in of_kind(overlay, "NetworkPolicy").values())
    return [one for one in specs if kind in one["policyTypes"] and selects(one["podSelector"], pod)]


def _rules(specs: Sequence[Manifest], field: str) -> list[Any]:
    return [rule for spec in specs for rule in spec.get(field, ())]


def _allows(rule: Manifest, field: str, peer: Pod, port: int) -> bool:
    ports, peers = rule.get("ports", ()), rule.get(field, ())
    if ports and port not in {one["port"] for one in ports if one.get("protocol", "TCP") == "TCP"}:
        return False
    return not peers or any(selects(one["podSelector"], peer) for one in peers)

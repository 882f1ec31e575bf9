"""Parameter servers that become fewer and more by `kubectl scale`."""

from __future__ import annotations

import json

from tests.deploy.manifests.rendering import Manifest, rendered
from tests.deploy.manifests.tasks import servers

OVERLAY = "overlays/movable"


def one(kind: str, name: str) -> Manifest:
    """The only one of a kind whose name begins so."""
    (found,) = [
        each
        for each in rendered(OVERLAY)
        if each["kind"] == kind and each["metadata"]["name"].startswith(name)
    ]
    return found


def test_there_are_as_many_tasks_as_there_may_be_servers_and_fewer_begin_with_them() -> None:
    tasks = json.loads(one("ConfigMap", "cluster")["data"]["CLUSTER"])["ps"]
    assert tasks == [f"ps-{number}.ps:2222" for number in range(4)]
    assert one("StatefulSet", "ps")["spec"]["replicas"] == 2
    assert [f"{pod.name}.ps:2222" for pod, _ in servers(OVERLAY)] == tasks[:2]
    for _, given in servers(OVERLAY):
        assert (given["tasks"], given["servers"]) == (4, 2)


def test_their_tasks_can_move() -> None:
    for pod, given in servers(OVERLAY):
        assert given["replicas"] == 1
        assert given["arbiter"] == "kubernetes:stratagem/stratagem"
        assert given["advertise"] == f"{pod.name}.ps:2222"


def test_a_server_has_time_to_give_its_tasks_away() -> None:
    pod = one("StatefulSet", "ps")["spec"]["template"]["spec"]
    for _, given in servers(OVERLAY):
        assert given["drain_seconds"] == 60.0
        # Calls under way get as long as the tasks.
        assert pod["terminationGracePeriodSeconds"] > 2 * given["drain_seconds"]


def test_tasks_reach_each_other_at_any_port() -> None:
    (rule,) = one("NetworkPolicy", "cluster")["spec"]["ingress"]
    assert "ports" not in rule
    assert rule["from"]

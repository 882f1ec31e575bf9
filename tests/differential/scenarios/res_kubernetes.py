"""KubernetesClusterResolver, with the answers of an API server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


class Api:
    """What a client of Kubernetes returns: pods by label selector."""

    def __init__(self, **pods: list[Any]) -> None:
        self._pods = pods

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        """Return the pods of `app=<keyword>`; those of `app=w` by default."""
        chosen = label_selector.removeprefix("app=")
        return SimpleNamespace(items=self._pods.get(chosen, self._pods["w"]))


def pod(name: str, host: str, phase: str = "Running") -> Any:
    """Return a pod as the client describes it."""
    status = SimpleNamespace(phase=phase, host_ip=host)
    metadata = SimpleNamespace(name=name, labels=None, annotations=None)
    return SimpleNamespace(status=status, metadata=metadata)


def resolver_of(lib: Library, api: Api, *args: Any, **settings: Any) -> Any:
    """Return a resolver that asks a client."""
    make = lib.distribute.cluster_resolver.KubernetesClusterResolver
    return make(*args, override_client=api, **settings)


@scenario("RES-12", core=(314,))
def one_pod_is_one_worker(lib: Library) -> Any:
    resolver = resolver_of(lib, Api(w=[pod("tensorflow-abc", "10.0.0.1")]))
    return resolver.cluster_spec().as_dict()


@scenario("RES-12", core=(314,))
def pods_are_sorted_by_name(lib: Library) -> Any:
    pods = [pod("b", "10.0.0.1"), pod("c", "10.0.0.2"), pod("a", "10.0.0.3")]
    return resolver_of(lib, Api(w=pods)).cluster_spec().as_dict()


@scenario("RES-12", core=(314,))
def each_selector_has_its_pods(lib: Library) -> Any:
    api = Api(
        v=[pod("v-b", "10.0.0.1"), pod("v-a", "10.0.0.2")],
        w=[pod("a", "10.0.0.3")],
        p=[pod("p", "10.0.0.4")],
    )
    jobs = {"worker": ["app=v", "app=w"], "ps": ["app=p"]}
    return resolver_of(lib, api, jobs, 2222).cluster_spec().as_dict()


@scenario("RES-12", core=(315,))
def a_pod_does_not_run(lib: Library) -> Any:
    api = Api(w=[pod("a", "10.0.0.1"), pod("b", "10.0.0.2", "Failed")])
    says = ('Pod "b" is not running; phase: "Failed"',)
    return attempt(resolver_of(lib, api).cluster_spec, says=says)


@scenario("RES-13", core=(315,))
def the_master_is_the_task_that_is_named(lib: Library) -> Any:
    resolver = resolver_of(lib, Api(w=[pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]))
    own = [resolver.master(), resolver.task_type, resolver.task_id]
    asked = [resolver.master("worker", 1), resolver.master("worker", 0, "http")]
    resolver.task_type, resolver.task_id = "worker", 1
    return [own, asked, resolver.master()]

"""Parameter servers may keep Leases, in any overlay that wants it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests.check import manifest_problems
from tests.deploy.manifests.rendering import FOLDER, Manifest, render


@pytest.fixture
def manifests(tmp_path: Path) -> Sequence[Manifest]:
    """Those of the base with the component."""
    folder = os.path.relpath(FOLDER.resolve(), tmp_path.resolve())
    kustomization = {
        "namespace": "stratagem",
        "resources": [f"{folder}/base"],
        "components": [f"{folder}/arbiter"],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    return list(yaml.safe_load_all(render(tmp_path)))


def one(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """The only one of a kind, or that of parameter servers."""
    found = [
        each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == "ps"
    ]
    assert len(found) == 1
    return found[0]


def test_an_api_server_would_accept_them(manifests: Sequence[Manifest]) -> None:
    assert [problem for each in manifests for problem in manifest_problems(each)] == []


def test_pods_of_servers_are_known_as_who_may_keep_leases(manifests: Sequence[Manifest]) -> None:
    pod = one(manifests, "StatefulSet")["spec"]["template"]["spec"]
    account = one(manifests, "ServiceAccount")["metadata"]
    assert pod["automountServiceAccountToken"] is True
    assert (pod["serviceAccountName"], account["namespace"]) == (account["name"], "stratagem")
    binding, role = one(manifests, "RoleBinding"), one(manifests, "Role")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


def test_they_may_do_what_they_do_and_nothing_else(manifests: Sequence[Manifest]) -> None:
    (rule,) = one(manifests, "Role")["rules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    }


def test_the_network_lets_them_reach_the_api_server(manifests: Sequence[Manifest]) -> None:
    policy = one(manifests, "NetworkPolicy")["spec"]
    pod = one(manifests, "StatefulSet")["spec"]["template"]["metadata"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["labels"].items()
    assert policy["egress"] == [{"ports": [{"port": 443}, {"port": 6443}]}]

"""Prometheus finds the figures of servers, Grafana finds it, and nobody else does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests.pods import pods_of
from tests.deploy.manifests.rendering import FOLDER, Manifest, render, rendered
from tests.deploy.manifests.tasks import COORDINATED, of_kind, port, selects, servers

OVERLAY = "overlays/observability"

in_both = pytest.mark.parametrize("overlay", [OVERLAY, f"{COORDINATED}-observability"])


def files() -> dict[str, str]:
    """What is mounted, by the names of files."""
    return {
        name: text
        for manifest in rendered(OVERLAY)
        if manifest["kind"] == "ConfigMap"
        for name, text in manifest["data"].items()
    }


def settings(name: str) -> Any:
    return yaml.safe_load(files()[name])


def labels(deployment: str) -> Manifest:
    """Those of the pods of a deployment."""
    found = of_kind(OVERLAY, "Deployment")[deployment]["spec"]["template"]
    return dict(found["metadata"]["labels"])


@in_both
def test_prometheus_finds_all_servers_by_their_services(overlay: str) -> None:
    (scraping,) = settings("prometheus.yml")["scrape_configs"]
    (found,) = scraping["dns_sd_configs"]
    assert found["type"] == "SRV"
    for pod, given in servers(overlay):
        service = of_kind(overlay, "Service")[pod.subdomain]["spec"]
        ports = {entry["name"]: entry["port"] for entry in service["ports"]}
        domain = f"{pod.subdomain}.{pod.namespace}.svc.cluster.local"
        assert f"_metrics._tcp.{domain}" in found["names"]
        assert ports["metrics"] == port(given["metrics_bind"]) == pod.ports["metrics"]


@in_both
def test_servers_are_named_as_their_pods_are(overlay: str) -> None:
    (scraping,) = settings("prometheus.yml")["scrape_configs"]
    (rule,) = scraping["relabel_configs"]
    assert (rule["source_labels"], rule["target_label"]) == (
        ["__address__"],
        "instance",
    )
    for pod, _ in servers(overlay):
        named = re.fullmatch(rule["regex"], f"{pod.dns_names[-1]}:2224")
        assert named and named[1] == pod.name


def test_alerts_and_the_dashboard_are_where_they_are_looked_for() -> None:
    assert set(settings("prometheus.yml")["rule_files"]) <= files().keys()
    (provider,) = settings("dashboards.yml")["providers"]
    grafana = of_kind(OVERLAY, "Deployment")["grafana"]["spec"]["template"]["spec"]
    (mount,) = (
        mount["name"]
        for mount in grafana["containers"][0]["volumeMounts"]
        if mount["mountPath"] == provider["options"]["path"]
    )
    (volume,) = (one for one in grafana["volumes"] if one["name"] == mount)
    texts = of_kind(OVERLAY, "ConfigMap")[volume["configMap"]["name"]]["data"]
    assert texts.keys() == {"dashboard.json"}


def test_grafana_asks_the_service_of_prometheus() -> None:
    (source,) = settings("datasource.yml")["datasources"]
    service = of_kind(OVERLAY, "Service")["prometheus"]["spec"]
    assert source["url"] == f"http://prometheus:{service['ports'][0]['port']}"
    assert service["selector"] == labels("prometheus")


@in_both
def test_figures_are_for_prometheus_and_prometheus_is_for_grafana(overlay: str) -> None:
    policies = of_kind(overlay, "NetworkPolicy")
    for name, asker, open_port in (
        ("figures", "prometheus", 2224),
        ("prometheus", "grafana", 9090),
    ):
        (allowed,) = policies[name]["spec"]["ingress"]
        assert [entry["port"] for entry in allowed["ports"]] == [open_port]
        (source,) = allowed["from"]
        assert source["podSelector"]["matchLabels"] == labels(asker)
    for pod, given in servers(overlay):
        assert selects(policies["figures"]["spec"]["podSelector"], pod)
        assert port(given["metrics_bind"]) == 2224


def test_replicas_have_figures_where_prometheus_is_added(tmp_path: Path) -> None:
    folder = os.path.relpath(FOLDER.resolve(), tmp_path.resolve())
    kustomization = {
        "resources": [f"{folder}/overlays/replicas"],
        "components": [f"{folder}/observability"],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(kustomization))
    found = [
        pod for pod in pods_of(list(yaml.safe_load_all(render(tmp_path)))) if pod.component == "ps"
    ]
    assert [pod.name for pod in found] == ["ps-0-0", "ps-0-1", "ps-1-0", "ps-1-1"]
    for pod in found:
        assert "--metrics-bind=0.0.0.0:2224" in pod.command
        assert pod.ports["metrics"] == 2224

"""The overlay that the page on deploying shows, and the commands that it has."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import yaml

from tests.deploy.manifests.pods import pods_of
from tests.deploy.manifests.rendering import FOLDER, OVERLAYS, ROOT, render

PAGE = (ROOT / "docs/deploying.md").read_text()


def shown(language: str, name: str) -> str:
    """The file of a certain name on the page."""
    pattern = rf"^```{language}\n# {re.escape(name)}\n(.*?)^```"
    (text,) = re.findall(pattern, PAGE, re.DOTALL | re.M)
    return str(text)


def test_the_overlay_has_the_tasks_that_it_names(tmp_path: Path) -> None:
    base = os.path.relpath((FOLDER / "base").resolve(), tmp_path.resolve())
    kustomization = shown("yaml", "kustomization.yaml")
    kustomization = kustomization.replace("../stratagem/deploy/kubernetes/base", base)
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    (tmp_path / "cluster.env").write_text(shown("ini", "cluster.env"))
    pods = pods_of(list(yaml.safe_load_all(render(tmp_path))))
    servers = [pod for pod in pods if pod.component == "ps"]
    workers = [pod for pod in pods if pod.component == "worker"]
    assert (len(servers), len(workers)) == (3, 4)
    for index, worker in enumerate(workers):
        told = json.loads(worker.environment["TF_CONFIG"])
        assert told["cluster"]["ps"] == [f"{pod.dns_names[0]}:2222" for pod in servers]
        assert len(told["cluster"]["worker"]) == len(workers)
        assert told["task"] == {"type": "worker", "index": index}
        assert worker.command == ["python", "/my/train.py"]


def test_images_are_those_of_the_digests(tmp_path: Path) -> None:
    overlay = os.path.relpath((FOLDER / "overlays/tls").resolve(), tmp_path.resolve())
    kustomization = shown("yaml", "digests/kustomization.yaml")
    kustomization = kustomization.replace("../stratagem/deploy/kubernetes/overlays/tls", overlay)
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    pods = pods_of(list(yaml.safe_load_all(render(tmp_path))))
    for pod in pods:
        for container in (*pod.first, pod.container):
            assert re.fullmatch(
                r"registry\.example\.com/stratagem-(server|worker)@sha256:[0-9a-f]{64}",
                container.image,
            )
    assert len({pod.container.image for pod in pods}) == 2


def test_the_page_names_every_overlay_and_files_that_there_are() -> None:
    assert all(f"| `{overlay}` |" in PAGE for overlay in OVERLAYS)
    for path in re.findall(r"--(?:kustomize|filename|file) (deploy/\S+\w)", PAGE):
        assert (ROOT / path).exists(), path

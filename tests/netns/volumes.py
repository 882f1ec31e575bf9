"""Volumes of pods as folders of this machine."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.manifests.pods import Pod


@dataclass(frozen=True)
class Volumes:
    """The volumes of pods that run on one machine.

    Attributes:
        folder: Where all of them are.
        secrets: The files of each secret, by its name.
    """

    folder: Path
    secrets: dict[str, dict[str, str]]

    def mounts(self, pod: Pod) -> dict[str, Path]:
        """The folders of a pod's volumes, by where they are mounted."""
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        return {
            path: self._folder(pod, volumes[name]) for path, name in pod.container.mounts.items()
        }

    def _folder(self, pod: Pod, volume: dict[str, Any]) -> Path:
        owner = pod.spec["securityContext"]["fsGroup"]
        if "secret" in volume:
            return self._secret(volume["secret"], owner)
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return _owned(self.folder / f"claim-{claim}", owner)
        assert "emptyDir" in volume, volume
        return _owned(self.folder / f"{pod.name}-{volume['name']}", owner)

    def _secret(self, secret: dict[str, Any], group: int) -> Path:
        name = secret["secretName"]
        folder = self.folder / f"secret-{name}"
        folder.mkdir(exist_ok=True)
        for file, text in self.secrets[name].items():
            path = folder / file
            path.write_text(text)
            path.chmod(secret["defaultMode"])
            shutil.chown(path, group=group)
        return folder


def _owned(folder: Path, owner: int) -> Path:
    folder.mkdir(exist_ok=True)
    os.chown(folder, owner, owner)
    return folder

"""Files and folders of servers that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem import InvalidArgumentError
from stratagem_deploy.clusters.storage import storage
from stratagem_psserver.settings import Durability


@pytest.mark.parametrize("durability", ["log", "snapshot"])
def test_a_durability_without_a_folder_says_how_to_name_one(durability: Durability) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"'{durability}' needs a folder.*--durability-f"
    ):
        storage(None, durability)


def test_a_folder_without_a_durability_says_how_to_choose_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{tmp_path}' without.* by --durability or"):
        storage(None, durability_folder=tmp_path)

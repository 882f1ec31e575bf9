"""Clusters that save to a store and are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stores.kills import kills

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_checkpoint_in_a_store_survives_kills(bucket: str, tmp_path: Path) -> None:
    found = list(kills(f"{bucket}/run", 4, seed=7, folder=tmp_path))
    assert [fault for kill in found for fault in kill.faults] == []
    assert found[-1].found >= 4

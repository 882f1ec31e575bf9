"""Fixtures for tests of what servers are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TOKEN
from tests.deploy.watching.asked_doctor import AskedDoctor


@pytest.fixture
def doctor(tmp_path: Path) -> AskedDoctor:
    """Who asks servers with TOKEN."""
    (tmp_path / "token").write_text(TOKEN)
    return AskedDoctor(str(tmp_path / "token"))

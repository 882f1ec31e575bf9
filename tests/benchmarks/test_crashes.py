"""Programs whose server is killed find what its durability promises."""

from __future__ import annotations

import pytest

from benchmarks.crashes.__main__ import OURS, found_by

pytestmark = pytest.mark.long


def test_a_client_finds_what_the_durability_of_its_server_promises() -> None:
    found = {subject.name: found_by(subject) for subject in OURS}
    assert {name: finding.there for name, finding in found.items()} == {
        "Stratagem, `none`": None,
        "Stratagem, `snapshot`": None,
        "Stratagem, `log`": 100,
    }
    assert found["Stratagem, `log`"].words == "goes on"
    assert found["Stratagem, `none`"].words.startswith("SessionLostError")

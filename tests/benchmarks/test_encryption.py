"""What certificates cost, measured briefly."""

from __future__ import annotations

import pytest

from benchmarks.encryption.__main__ import main
from stratagem_rpc.channel import TCP

pytestmark = pytest.mark.long


def test_requests_by_the_data_port_are_measured_with_certificates_and_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(rounds=1, ways=[TCP])
    heading, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert heading.count("tcp, ") == 2
    assert [row.split("|")[1].strip() for row in rows] == [
        "assign 16 bytes",
        "read 16 bytes",
        "add 10 MB",
        "assign 10 MB",
        "read 10 MB",
        "open a session",
    ]
    for row in rows:
        plain, encrypted, ratio = map(float, row.split("|")[2:5])
        assert min(plain, encrypted, ratio) > 0

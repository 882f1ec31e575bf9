"""Certificates in tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.table import Table

from stratagem_deploy.output.console import table_console
from stratagem_proto.certificates.folder import read_certificates

_FORMAT = "%F %T UTC"


def described(folder: Path) -> dict[str, str | float]:
    """Return what the certificate in a folder says; raise as `read_certificates`."""
    found = read_certificates(folder)
    identity, leaf = found.identity, found.leaf
    left = leaf.not_valid_after_utc - datetime.now(timezone.utc)
    return {
        "folder": str(folder),
        "cluster": identity.cluster,
        "role": identity.role,
        "task": f"{identity.job}:{identity.task}" if identity.job else "",
        "id": identity.uri,
        "serial": f"{leaf.serial_number:x}",
        "valid_from": leaf.not_valid_before_utc.strftime(_FORMAT),
        "valid_until": leaf.not_valid_after_utc.strftime(_FORMAT),
        "days_left": round(left.total_seconds() / 86_400, 2),
    }


def table(listed: Sequence[Mapping[str, str | float]]) -> None:
    """Print a table with a line for each."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("folder", "cluster", "task", "role", "valid until", "days left"):
        shown.add_column(heading, overflow="fold")
    for each in listed:
        days = f"{each['days_left']:,.1f}"
        cells = (each[name] for name in ("folder", "cluster", "task", "role", "valid_until"))
        shown.add_row(*map(str, cells), days)
    table_console().print(shown)

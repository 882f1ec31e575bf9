"""How far a training in containers has come."""

from __future__ import annotations

from tests.compose.project import Project


def checkpoints(project: Project) -> int:
    """How many checkpoints there are."""
    listing = project.inside("ps-0", "ls", "/checkpoints")
    return sum(name.startswith("checkpoint-") for name in listing.split())

"""All that is wrong with a cluster, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

from stratagem_deploy.watching.asking import ServerAnswer, of_clients
from stratagem_deploy.watching.diagnosis import (
    clients,
    disks,
    functions,
    machines,
    replicas,
    stragglers,
    waits,
)
from stratagem_deploy.watching.diagnosis.finding import Finding


def findings(answers: Sequence[ServerAnswer], patience: float) -> list[Finding]:
    """Return what is wrong, those first for whom others wait.

    Args:
        answers: What servers say.
        patience: Waits of fewer seconds are usual.
    """
    called = of_clients(answers)
    links = [*clients.cut_off(called, patience)]
    excused = {culprit for link in links for culprit in link.culprits}
    found = [
        *machines.missed(answers),
        *replicas.unserved(answers),
        *disks.stuck(answers, patience),
        *machines.refusing(answers),
        *links,
        *waits.stalled(called, patience, excused),
        *functions.unreached(called, patience),
        *functions.endless(called, patience),
        *disks.late_parts(answers, patience),
        *replicas.unprotected(answers),
        *clients.lost(called),
        *clients.silent(called),
        *machines.full(answers),
        *disks.slow(answers),
        *machines.slow_servers(called),
        *stragglers.stragglers(called),
        *machines.skewed(answers),
        *machines.different(answers),
    ]
    return sorted(found, key=lambda finding: not finding.stalls)

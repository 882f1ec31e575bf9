"""What a chief that knows nothing has to hear before it may decide; without the wire.

Views are replaced only for a replica that the present view names, or for the next process with the
number of one that has ended. If all processes of the task take answers from this chief alone, then
what any of them can still act upon is what they know. Processes that have ended may have acted upon
a later view, but only if a replica of the last view that is known has asked for it, or has ended.
So the chief waits until all replicas that this view names are there with the states that they had,
and all that are named by what was asked for on top of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratagem_proto.v1.arbitration_pb2 import Report
from stratagem_proto.v1.replication_pb2 import Replica, View


def latest(reports: Sequence[Report]) -> View | None:
    """Return the latest view that a replica knows; None if none knows any."""
    known = [report.known for report in reports if report.HasField("known")]
    return max(known, key=lambda view: view.epoch, default=None)


def obstacle(reports: Sequence[Report]) -> str:
    """Return why the latest view may not be the present one, and what to do; "" if it is.

    Args:
        reports: Those of all replicas of the task, all of whom take answers from this chief alone.
    """
    indices = [report.replica.index for report in reports]
    if len(set(indices)) < len(indices):
        first, other = (report.replica.address for report in reports[:2])
        return (
            f"the replicas at {first} and {other} have the same --replica {indices[0]}; stop one "
            "of the two, and start it with another number"
        )
    view = latest(reports)
    present = {report.replica.instance for report in reports}
    for replica in _concerned(view, reports):
        if replica.instance not in present:
            epoch = view.epoch if view is not None else 0
            return (
                f"the replica at {replica.address} has ended while no chief was there, and with it "
                f"what nobody else may know of the time after view {epoch}; stop all replicas of "
                "the task and start them again, from a checkpoint"
            )
    return ""


def _concerned(view: View | None, reports: Sequence[Report]) -> Iterator[Replica]:
    """Yield the replicas that may have acted upon the latest view, or upon the next one."""
    epoch = 0
    if view is not None:
        epoch = view.epoch
        yield from _named(view)
    for report in reports:
        for wanted in report.wanted:
            if wanted.epoch > epoch:
                yield from _named(wanted)


def _named(view: View) -> Iterator[Replica]:
    if view.HasField("primary"):
        yield view.primary
    if view.HasField("backup"):
        yield view.backup

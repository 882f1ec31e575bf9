"""The state of a server besides variables in a checkpoint, and resuming from a checkpoint."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stratagem_proto.checkpoint.companions import is_companion
from stratagem_proto.checkpoint.contents import wholes_of
from stratagem_proto.checkpoint.entries import TensorEntry
from stratagem_proto.checkpoint.folder import Checkpoint, open_checkpoint, part_name
from stratagem_proto.checkpoint.soundness import refused_if_unsound
from stratagem_proto.checkpoint.whole import whole_name
from stratagem_proto.errors import (
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
)
from stratagem_proto.reading_ahead import read_ahead
from stratagem_proto.stores.places import absolute_place, shared_place
from stratagem_proto.v1.recorded_reply_pb2 import RecordedReply
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.versions import first_of_another_run
from stratagem_psserver.exactly_once.numbering import Numbering
from stratagem_psserver.exactly_once.recorded_closures import dump_closures, restore_closures
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.limits.allocation import allocating
from stratagem_psserver.tables.reading import read_table

if TYPE_CHECKING:
    from stratagem_psserver.state import ServerState
    from stratagem_psserver.variables.store import VariableStore


_ADVICE = "start it where there is more, or let strategy.restore() use more servers"


def dump(state: ServerState) -> str:
    """Return the state of a server except variables, as the text of JSON."""
    return json.dumps(facts_of(state))


def facts_of(state: ServerState) -> dict[str, Any]:
    """Return the state of a server except variables, as JSON."""
    return {
        "sessions": [_session_to_json(one) for one in state.ledger.sessions()],
        "fence": state.ledger.fence.facts(),
        **state.cluster.facts(),
        "optimizers": state.optimizers.classes(),
        "groups": state.rounds.applied(),
        "clocks": state.clocks.facts(),
        "closures": dump_closures(state.closures),
        "data": state.data.facts(),
        "barriers": state.barriers.facts(one.id for one in state.ledger.sessions()),
        "restored": state.restored.facts(),
        "run": state.restored.run_facts(),
        "counted": state.ledger.counted.facts(),
    }


def _session_to_json(session: Session) -> dict[str, Any]:
    numbering = session.numbering
    return {
        "id": session.id.hex(),
        "client": session.client.hex(),
        "program": session.program.hex(),
        "process": session.process.hex(),
        "role": session.role,
        "task": [session.task.job, session.task.index],
        "opened": session.opened,
        "acknowledged": numbering.acknowledged,
        "last": numbering.last,
        "replies": [b64encode(reply.SerializeToString()).decode() for reply in numbering.replies()],
    }


def _session_from_json(item: dict[str, Any]) -> Session:
    replies = [RecordedReply.FromString(b64decode(each)) for each in item["replies"]]
    job, index = item["task"]
    return Session(
        bytes.fromhex(item["id"]),
        item["role"],
        Task(job=job, index=index),
        numbering=Numbering.restored(item["acknowledged"], item["last"], replies),
        client=bytes.fromhex(item["client"]),
        program=bytes.fromhex(item.get("program", "")),
        process=bytes.fromhex(item.get("process", "")),
        opened=item.get("opened", 0),
    )


def resume(state: ServerState, path: str) -> bool:
    """Restore an empty server from its part of the latest checkpoint, if there is one.

    Args:
        state: The state of the server.
        path: The folder of checkpoints.

    Returns:
        Whether there was a checkpoint.

    Raises:
        FailedPreconditionError: The checkpoint has no part of this server.
        DataLossError: It is damaged.
        PermissionDeniedError: It is not below the server's root of checkpoints.
    """
    try:
        checkpoint = open_checkpoint(shared_place(absolute_place(path)), state.settings.checkpoints)
    except NotFoundError:
        return False
    if part_name(state.settings.task) not in checkpoint.index.servers:
        raise FailedPreconditionError(
            f"{str(checkpoint.folder)!r} has nothing of {state.settings.label}: "
            f"{len(checkpoint.index.servers)} servers wrote it. Start as many, or let "
            "the program restore it by strategy.restore()"
        )
    resume_as_another_run(state, checkpoint)
    # Checkpoints of earlier releases do not say it otherwise.
    state.cluster.size.learn(len(checkpoint.index.servers))
    return True


def resume_as_another_run(state: ServerState, checkpoint: Checkpoint, has_all: bool = True) -> None:
    """Restore an empty server from its part of a checkpoint, which is of the past.

    Args:
        state: The state of the server.
        checkpoint: The checkpoint.
        has_all: Whether it must have the parts of all servers.

    Raises:
        DataLossError: It is damaged.
    """
    part = part_name(state.settings.task)
    state.store.first_version = first_of_another_run(state.environment.random_bytes)
    with allocating(_ADVICE), refused_if_unsound(str(checkpoint.folder)):
        resume_variables(state, checkpoint, part, has_all)
        resume_facts(state, checkpoint.index.servers[part])
    state.resumed = True


def resume_facts(state: ServerState, facts: Mapping[str, Any]) -> None:
    """Restore what `facts_of` returned."""
    state.ledger.restore(_session_from_json(one) for one in facts["sessions"])
    state.optimizers.restore(facts["optimizers"])
    state.rounds.restore(facts["groups"])
    # Checkpoints of earlier releases lack some of these.
    if fence := facts.get("fence"):
        state.ledger.fence.restore(fence)
    state.cluster.restore(facts)
    state.clocks.restore(facts.get("clocks", {}))
    restore_closures(state.closures, facts.get("closures", []))
    state.data.restore(facts.get("data", {}))
    state.barriers.restore(facts.get("barriers", {}))
    state.ledger.counted.restore(facts.get("counted", {}))
    state.restored.restore_run(facts.get("run"))
    announced = facts.get("restored", ())
    state.restored.restore(announced, awaited=[session for _, session in announced])


def resume_variables(
    state: ServerState, checkpoint: Checkpoint, part: str, has_all: bool = True
) -> None:
    """Create the variables of a part of a checkpoint.

    Args:
        state: The state of the server.
        checkpoint: The checkpoint.
        part: The name of the part.
        has_all: Whether the checkpoint must have the parts of all servers.

    Raises:
        ResourceExhaustedError: There is no memory for them.
    """
    tensors, store = checkpoint.index.tensors, state.store
    mine = [
        entry
        for name, entry in tensors.items()
        if entry.file == part and not is_companion(name, tensors)
    ]
    _require_room(store, mine)
    wholes = wholes_of(checkpoint.index, has_all)
    values = read_ahead(checkpoint.tensor, [entry for entry in mine if entry.rows is None])
    # In their order: a slot variable of a table comes behind it.
    for entry in mine:
        if entry.rows is None:
            store.create([entry.spec], [next(values)])
        elif not entry.spec.slot_of:
            whole = wholes[whole_name(entry.spec)]
            states = [one for one in wholes.values() if one.is_state_of(whole)]
            for arena in read_table(checkpoint, entry.spec, whole, states).arenas:
                store.put_table(arena)
    store.recount([entry.name for entry in mine])


def _require_room(store: VariableStore, entries: Sequence[TensorEntry]) -> None:
    """Check the limit of the memory of variables before any of them is read."""
    nbytes, left = sum(entry.nbytes for entry in entries), store.memory_limit.left
    if left is not None and nbytes > left:
        raise ResourceExhaustedError(
            f"variables of the checkpoint have {nbytes} bytes, and {left} are left of "
            f"--variable-bytes; {_ADVICE}"
        )

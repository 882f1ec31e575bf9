"""How servers and their checkpoints keep what tells variables of one name apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stratagem._core.names import Origin, form_of, origins_by_names
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.whole import Whole, whole_name
from stratagem_proto.programs.slot_names import SlotName
from stratagem_proto.protocol import MAX_LABEL_LENGTH, name_of_whole
from stratagem_proto.v1 import variable_pb2 as pb
from stratagem_proto.wire.tensors import decode_dtype


def message_of(origin: Origin) -> pb.Origin:
    """Return how servers keep an origin; they know the form anyhow."""
    return pb.Origin(
        wanted_name=origin.wanted,
        structure=origin.structure,
        label=origin.label[:MAX_LABEL_LENGTH],
        batch=origin.batch,
        phase=origin.phase,
    )


def origins_of(specs: Iterable[pb.VariableSpec]) -> dict[str, Origin]:
    """Return the origins of variables on servers, or in a checkpoint, by their whole names.

    The state of optimizers is left out.
    """
    wholes = {_name(spec): spec for spec in specs if not spec.slot_of}
    forms = {name: _form(spec) for name, spec in wholes.items()}
    found = origins_by_names(forms)
    for name, spec in wholes.items():
        if spec.HasField("origin"):
            one = spec.origin
            found[name] = Origin(
                one.wanted_name, forms[name], one.structure, one.label, one.batch, one.phase
            )
    return found


def origins_in_checkpoint(checkpoint: Checkpoint, wholes: Mapping[str, Whole]) -> dict[str, Origin]:
    """Return the origins of the variables of a checkpoint, by their whole names."""
    found = origins_of(entry.spec for entry in checkpoint.index.tensors.values())
    return {
        name: found[name]
        for name, whole in wholes.items()
        if name in found and not whole.slot_of and SlotName.parse(name) is None
    }


def _name(spec: pb.VariableSpec) -> str:
    # Parts of tables of keys have no place in a whole.
    return name_of_whole(spec.name) if spec.table.HasField("dynamic") else whole_name(spec)


def _form(spec: pb.VariableSpec) -> str:
    split = spec.HasField("partition")
    shape = spec.partition.full_shape if split else spec.tensor.shape
    return form_of(decode_dtype(spec.tensor.dtype), shape)

"""How servers and files keep what tells variables of one name apart."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress

import torch

from stratagem._core.namesakes import Origin, Origins, form_of, origins_by_names
from stratagem_proto.checkpoint.folder import Checkpoint
from stratagem_proto.checkpoint.whole import Whole, whole_name
from stratagem_proto.programs.slot_names import SlotName
from stratagem_proto.protocol import MAX_LABEL_LENGTH, name_of_whole
from stratagem_proto.v1 import variable_pb2 as pb
from stratagem_proto.wire.tensors import decode_dtype

_KEY = "stratagem.origins"
_ATTRIBUTE = "_origins"


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


# Of the state of a strategy whose variables are all in one process.


def with_origins(state: Mapping[str, torch.Tensor], origins: Origins) -> dict[str, torch.Tensor]:
    """Return a state that remembers the origins of what has namesakes.

    They are an attribute, as those that torch keeps in the `state_dict` of modules: `torch.save`
    keeps it, and a copy by a comprehension leaves it out.
    """
    by_wanted: dict[str, dict[str, Origin]] = {}
    for name, origin in origins.items():
        by_wanted.setdefault(origin.wanted, {})[name] = origin
    kept = {
        name: list(origin)
        for group in by_wanted.values()
        if len(group) > 1
        for name, origin in group.items()
    }
    if not kept:
        return dict(state)
    remembering = OrderedDict(state)
    setattr(remembering, _ATTRIBUTE, kept)
    return remembering


def origins_in(state: Mapping[str, torch.Tensor]) -> dict[str, Origin]:
    """Return the origins of what a state has, as far as it, or its names, tell them."""
    forms = {
        name: form_of(value.dtype, value.shape)
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and SlotName.parse(name) is None
    }
    kept = getattr(state, _ATTRIBUTE, {})
    known = {name: Origin(*kept[name]) for name in kept if name in forms}
    return {**origins_by_names(forms), **known}


def metadata_of(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return what a file is to keep of a state besides its tensors."""
    kept = getattr(state, _ATTRIBUTE, None)
    return {_KEY: json.dumps(kept, separators=(",", ":"))} if kept else {}


def read_with(
    state: dict[str, torch.Tensor], metadata: Mapping[str, str]
) -> dict[str, torch.Tensor]:
    """Return the state of a file, which remembers what the file kept of origins."""
    found: dict[str, Origin] = {}
    # Of another library's file, or a damaged one, the names tell enough.
    with suppress(LookupError, ValueError, TypeError, AttributeError):
        found = {str(name): _checked(kept) for name, kept in json.loads(metadata[_KEY]).items()}
    return with_origins(state, found)


def _checked(kept: object) -> Origin:
    if not isinstance(kept, list):
        raise TypeError
    *texts, batch, phase = kept
    wanted, form, structure, label = map(str, texts)
    return Origin(wanted, form, structure, label, int(batch), int(phase))

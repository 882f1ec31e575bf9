"""How the state of a strategy in one process keeps what tells variables of one name apart."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress

import torch

from stratagem._core.names import Origin, Origins, form_of, origins_by_names
from stratagem_proto.programs.slot_names import SlotName

_KEY = "stratagem.origins"
_ATTRIBUTE = "_origins"


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

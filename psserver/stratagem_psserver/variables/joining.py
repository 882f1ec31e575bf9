"""Moving small variables into joint memory, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from stratagem_proto.wire.segment import starts
from stratagem_psserver.variables.joint_memory import JointMemory
from stratagem_psserver.variables.store import Variable, VariableStore


def joined(store: VariableStore, variables: Sequence[Variable]) -> torch.Tensor | None:
    """Return one vector that contains the values of some variables of one dtype.

    The values lie in it at the offsets that tensors of their sizes have in a shared segment. The
    bytes between them may be overwritten.

    Args:
        store: The store of the variables.
        variables: The variables, whose locks the caller holds. They are moved into joint memory
            unless they are in one already.

    Returns:
        The vector; None if one of the variables shares its memory with other variables, or the
        order is another one.
    """
    names = [each.name for each in variables]
    joints = [each.joint for each in variables]
    whole = {joint for joint in joints if joint is not None and joint.is_whole}
    if not whole:
        return _moved(store, variables)
    joint = whole.pop()
    return joint.memory if joint.names == names else None


def _moved(store: VariableStore, variables: Sequence[Variable]) -> torch.Tensor:
    values = [each.value for each in variables]
    size, dtype = values[0].itemsize, values[0].dtype
    places, room = starts([value.nbytes for value in values])
    memory = torch.zeros(room // size, dtype=dtype)
    joint = JointMemory(memory, [each.name for each in variables], store.memory_limit)
    for variable, value, place in zip(variables, values, places, strict=True):
        part = memory.narrow(0, place // size, value.numel()).view(value.shape)
        variable.set_storage(part.copy_(value), joint)
    store.changed()
    return memory


def joined_with(store: VariableStore, names: Iterable[str]) -> list[Variable]:
    """Return the other variables that share joint memory with these or with their slots.

    Names that the store does not know are left out.
    """
    own = {each for name in names for each in (name, *store.slots(name))}
    found = [store.find(name) for name in own]
    joints = {each.joint for each in found if each is not None and each.joint}
    other_names = {name for joint in joints for name in joint.names} - own
    others = [store.find(name) for name in sorted(other_names)]
    return [each for each in others if each is not None and each.joint in joints]


def separate(store: VariableStore, variables: Sequence[Variable]) -> None:
    """Move variables out of joint memory into their own; the caller holds their locks."""
    for variable in variables:
        variable.set_storage(variable.value.clone())
    if variables:
        store.changed()

"""Having small variables lie one behind the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from stratagem_proto.wire.segment import starts
from stratagem_psserver.variables.joint_memory import JointMemory
from stratagem_psserver.variables.store import Variable, VariableStore


def joined(store: VariableStore, variables: Sequence[Variable]) -> torch.Tensor | None:
    """Return the memory of some variables of one dtype, as a vector.

    They are in it where tensors of their sizes are in a segment. What is between them is there to
    be overwritten.

    Args:
        store: Where they are, of which nobody else uses these.
        variables: They are moved there, unless they lie so already.

    Returns:
        None if one of them lies together with others, or in another order.
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
    joint = JointMemory(memory, [each.name for each in variables], store.room)
    for variable, value, place in zip(variables, values, places, strict=True):
        part = memory.narrow(0, place // size, value.numel()).view(value.shape)
        variable.give(part.copy_(value), joint)
    store.changed()
    return memory


def neighbours(store: VariableStore, names: Iterable[str]) -> list[Variable]:
    """What lies in one memory with some variables or their slots, and is none of them.

    Names that the store does not know are left out.
    """
    own = {each for name in names for each in (name, *store.slots(name))}
    found = [store.find(name) for name in own]
    joints = {each.joint for each in found if each is not None and each.joint}
    beside = {name for joint in joints for name in joint.names} - own
    others = [store.find(name) for name in sorted(beside)]
    return [each for each in others if each is not None and each.joint in joints]


def part(store: VariableStore, variables: Sequence[Variable]) -> None:
    """Give variables, of which nobody else uses any, memory of their own."""
    for variable in variables:
        variable.give(variable.value.clone())
    if variables:
        store.changed()

"""Of which kind the instances of classes are."""

from __future__ import annotations

import gc
from weakref import WeakSet

from torch import nn

from stratagem._remote_objects.modules import ModuleKind
from stratagem._shipping.kinds import KindTable

_MADE = 3000
_KEPT = 2000


def test_a_program_may_make_classes_without_end() -> None:
    table = KindTable(ModuleKind())
    made: WeakSet[type] = WeakSet()
    for number in range(_MADE):
        bases = (nn.Module,) if number % 2 else ()
        made.add(cls := type("Made", bases, {}))
        assert isinstance(table[cls], ModuleKind) == bool(bases)
    gc.collect()
    assert len(made) < _KEPT

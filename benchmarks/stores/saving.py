"""A program that saves to a store, one checkpoint after the other, until it is killed."""

from __future__ import annotations

from pathlib import Path

import torch

import stratagem
from stratagem import Variable
from stratagem.cluster_resolver import ClusterResolver
from stratagem_proto.errors import NotFoundError

SERVERS = 2
_ELEMENTS = 1 << 20


def save_forever(resolver: ClusterResolver, url: str, saved: Path) -> None:
    """Go on from the latest checkpoint, and write the number of each to a file when it is saved."""
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        with strategy.scope():
            values = [Variable(torch.zeros(_ELEMENTS), name=f"v{n}") for n in range(SERVERS)]
        try:
            number = int(strategy.restore(url).extra["number"])
        except NotFoundError:
            number = 0
        while True:
            number += 1
            for value in values:
                value.assign(torch.full((_ELEMENTS,), float(number)))
            strategy.save(url, keep=2, extra={"number": number})
            saved.with_suffix(".new").write_text(str(number))
            saved.with_suffix(".new").replace(saved)

"""All that is fuzzed, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from tests.fuzzing import files, outcomes, programs, requests, wire
from tests.fuzzing.corpora import corpus_of
from tests.fuzzing.target import Target


def _with_corpus(name: str, target: Target) -> Target:
    return replace(target, begin_with=lambda: chain(target.begin_with(), corpus_of(name)))


_DECODERS: Mapping[str, Target] = {
    **wire.TARGETS,
    **programs.TARGETS,
    **requests.TARGETS,
    **outcomes.TARGETS,
    **files.TARGETS,
}
_EACH = {name: _with_corpus(name, target) for name, target in _DECODERS.items()}
_LISTED = [*_EACH.values()]


def _any(data: bytes) -> None:
    """Decode bytes by the decoder whose number the first one is."""
    if data:
        _LISTED[data[0] % len(_LISTED)].decode(data[1:])


def _of_any() -> Iterator[bytes]:
    for number, target in enumerate(_LISTED):
        for data in target.begin_with():
            yield bytes([number]) + data


TARGETS: Mapping[str, Target] = {**_EACH, "all": Target(_any, _of_any)}

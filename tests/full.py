"""What `make test` leaves to `make test-all`: the mark `full`, and how much Hypothesis tries.

Whoever marks a test or a file `full` says why the rest is enough before a commit:

    @pytest.mark.full("one kind of table stands for all; the wire's tests take each")

`make test-all`, which continuous integration runs, leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# The files that have a test that is run, and the rows of the specification that only others show.
KEPT = pytest.StashKey[set[Path]]()
LOST = pytest.StashKey[set[str]]()

# The numbers of two axes, and of a value on each.
_Pair = tuple[tuple[int, int], ...]

# Examples of a property that does not say how many it needs.
_FEW = 8

# How long an example takes is up to the machine.
hypothesis.settings.register_profile("all", deadline=None)
hypothesis.settings.register_profile("few", deadline=None, max_examples=_FEW)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples where the full matrices are not asked for."""
    hypothesis.settings.load_profile("few" if leaves_out(config) else "all")


def leaves_out(config: pytest.Config) -> bool:
    """Whether tests that are marked `full` are left out."""
    return "not full" in config.getoption("markexpr")


def examples(count: int) -> int:
    """Return how many of the examples that a property needs in `make test-all` to try now."""
    profile = hypothesis.settings.default
    is_full = profile is not None and profile.max_examples > _FEW
    return count if is_full else min(count, max(_FEW, count // 12))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: Sequence[pytest.Item]
) -> Generator[None, None, None]:
    """Note the files of the tests that are run.

    Raises:
        UsageError: A test is marked `full` without a reason.
    """
    for item in items:
        for mark in item.iter_markers("full"):
            if len(mark.args) != 1 or len(str(mark.args[0]).split()) < 3:
                raise pytest.UsageError(
                    f"{item.nodeid} is marked full and does not say why the rest is enough; "
                    'write pytest.mark.full("the reason")'
                )
    others = [item for item in items if item.get_closest_marker("full") is None]
    config.stash[LOST] = _rows(items) - _rows(others)
    yield
    config.stash[KEPT] = {item.path for item in items}


def _rows(items: Sequence[pytest.Item]) -> set[str]:
    return {row for item in items for mark in item.iter_markers("spec") for row in mark.args}


def by_pairs(names: str, *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise by a product whose cases are `full`, but for some that have all pairs.

    Of any two axes, each value of one meets each value of the other in a case that `make test`
    runs. A fault that needs a certain third value as well is left to `make test-all`.

    Args:
        names: The parameters, separated by commas, one for each axis.
        *axes: The values of each parameter.
    """
    cases = list(product(*(range(len(axis)) for axis in axes)))
    unmet = set[_Pair]().union(*map(_pairs, cases))
    few = set()
    while unmet:
        best = max(cases, key=lambda case: len(unmet & _pairs(case)))
        unmet -= _pairs(best)
        few.add(best)
    return _parametrized(names, axes, few, "each pair of its values stands in another case")


def by_values(names: str, *axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise likewise, where a case costs so much that each value alone is in one of few."""
    few = {tuple(turn % len(axis) for axis in axes) for turn in range(max(map(len, axes)))}
    return _parametrized(names, axes, few, "each of its values stands in another case")


def a_few(
    names: str, cases: Iterable[Any], reason: str, count: int = 1, **options: Any
) -> pytest.MarkDecorator:
    """Parametrise by cases of which all but the first ones are `full`.

    Args:
        names: The parameters, separated by commas.
        cases: Values, tuples of them, or what `pytest.param` returns.
        reason: Why the first ones are enough before a commit.
        count: How many those are.
        **options: Those of `pytest.mark.parametrize`.
    """
    first, rest = [*cases][:count], [*cases][count:]
    several = "," in names
    others = [
        each
        if isinstance(each, type(pytest.param()))
        else pytest.param(*(each if several else (each,)))
        for each in rest
    ]
    full = [
        pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.full(reason)])
        for each in others
    ]
    return pytest.mark.parametrize(names, [*first, *full], **options)


def _parametrized(
    names: str, axes: Sequence[Sequence[Any]], few: set[tuple[int, ...]], reason: str
) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *(axis[index] for axis, index in zip(axes, case, strict=True)),
                marks=() if case in few else pytest.mark.full(reason),
            )
            for case in product(*(range(len(axis)) for axis in axes))
        ],
    )


def _pairs(case: tuple[int, ...]) -> set[_Pair]:
    return set(combinations(enumerate(case), 2))

"""Tests that do not depend on what they are about are found."""

from __future__ import annotations

import pytest

import stratagem
from tests.spec.taking_away import Gone, owner_of, taken_away

pytest_plugins = ("pytester",)

METHOD = "stratagem.InputContext.get_per_replica_batch_size"

TESTS = """
    import pytest
    import stratagem

    @pytest.fixture
    def size():
        return stratagem.InputContext().get_per_replica_batch_size(3)

    @pytest.mark.spec("ENU-13")
    def test_calls_it():
        assert stratagem.InputContext().get_per_replica_batch_size(3) == 3

    @pytest.mark.spec("ENU-13")
    def test_uses_a_fixture_that_calls_it(size):
        assert size == 3

    @pytest.mark.spec("ENU-13")
    @pytest.mark.parametrize("called", [True, False])
    def test_sometimes_calls_it(called):
        assert not called or stratagem.InputContext().get_per_replica_batch_size(3)

    @pytest.mark.spec("ENU-13")
    def test_expects_any_error():
        with pytest.raises(NotImplementedError):
            stratagem.InputContext().get_per_replica_batch_size("a")

    def test_carries_no_row():
        pass
"""


def test_a_test_that_passes_without_its_row_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\nmarkers = spec\n  timeout")
    finished = pytester.runpytest("-p", "tests.spec.without_rows", "--without-rows")
    finished.assert_outcomes(passed=3, failed=2)
    finished.stdout.fnmatch_lines(
        [
            f"*passes although {METHOD}, the target of ENU-13, is taken away*",
            "FAILED *::test_sometimes_calls_it-without-ENU-13[[]False[]]*",
            "FAILED *::test_expects_any_error-without-ENU-13*",
        ]
    )


@pytest.mark.parametrize(
    "target",
    [
        "stratagem.get_strategy",
        "stratagem.VariableAggregation.SUM",
        "stratagem.Strategy.num_replicas_in_sync",
        "stratagem.MirroredStrategy.extended",
        "stratagem.ReduceOp.from_variable_aggregation",
        "stratagem._core.options.InputContext.get_per_replica_batch_size",
    ],
)
def test_what_is_taken_away_comes_back(target: str) -> None:
    owner, name = owner_of(target)
    before = vars(owner).get(name)
    with (
        taken_away([target]),
        pytest.raises(NotImplementedError, match=f"taken away: {target}"),
    ):
        getattr(owner, name)()
    assert vars(owner).get(name) is before
    assert not isinstance(getattr(owner, name), Gone)


def test_a_property_cannot_be_read() -> None:
    with (
        taken_away(["stratagem.Strategy.num_replicas_in_sync"]),
        pytest.raises(NotImplementedError, match="taken away"),
    ):
        stratagem.get_strategy().num_replicas_in_sync  # noqa: B018


@pytest.mark.parametrize("path", ["stratagem.nothing", "stratagem.Strategy.no.thing"])
def test_a_target_must_exist(path: str) -> None:
    with pytest.raises(LookupError, match=r"has no 'no"):
        owner_of(path)

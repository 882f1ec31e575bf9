"""Files without the mark that is asked for are not loaded, and no test is lost by that."""

from __future__ import annotations

import pytest

pytest_plugins = ("pytester",)

MARKED = "import pytest\n\n@pytest.mark.cluster\ndef test_marked(): pass\n"


@pytest.fixture(autouse=True)
def marks(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = cluster\n  long\n  timeout")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest("-p", "tests.marked_files", *options)


def test_only_files_with_the_mark_are_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one=MARKED, test_other="raise AssertionError('loaded')")
    for expression in ("cluster", "cluster and not long"):
        run(pytester, "-m", expression).assert_outcomes(passed=1)
    for options in [(), ("-m", "not cluster"), ("-m", "cluster or long")]:
        run(pytester, *options).stdout.fnmatch_lines("*AssertionError: loaded*")


def test_a_mark_that_would_not_be_found_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        marks="import pytest\nelsewhere = pytest.mark.cluster",
        test_it="from marks import elsewhere\n\n@elsewhere\ndef test_hidden(): pass\n",
    )
    run(pytester, "-m", "not cluster").stderr.fnmatch_lines(
        "*test_hidden has the mark cluster, and its file does not; write pytest.mark.cluster in*"
    )


@pytest.mark.full("a file without a mark is left out by the same line")
def test_files_all_of_whose_tests_are_unwanted_are_not_loaded(pytester: pytest.Pytester) -> None:
    unloadable = "raise AssertionError('loaded')\n"
    pytester.makepyfile(
        test_one="import pytest\n\n@pytest.mark.long\ndef test_long(): pass\ndef test_it(): pass\n",
        test_other=f"{unloadable}\npytestmark = [pytest.mark.timeout(9), pytest.mark.long]\n",
    )
    for expression in ("not long", "not cluster and not long"):
        run(pytester, "-m", expression).assert_outcomes(passed=1, deselected=1)
    for expression in ("long", "not cluster", "not long or long"):
        run(pytester, "-m", expression).stdout.fnmatch_lines("*AssertionError: loaded*")

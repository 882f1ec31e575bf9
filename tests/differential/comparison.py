"""Whether two answers are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tests.differential.answer import Answer

# What may stand for a class of errors where ours says more than TensorFlow's.
ARGUMENT = {"ValueError", "TypeError"}
ACCEPTED = {
    "AssertionError": ARGUMENT,
    "AttributeError": ARGUMENT,
    "IndexError": ARGUMENT,
    "InvalidArgumentError": ARGUMENT,
    "JSONDecodeError": ARGUMENT,
}

# Python numbers become 64-bit integers in torch, 32-bit ones in TensorFlow.
INTEGERS = {"int32", "int64"}

TOLERANCE = 1e-5


def difference(expected: Answer, actual: Answer, path: str = "answer") -> str | None:
    """Return where and how an answer differs from the expected one, if it does."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return _of_objects(expected, actual, path)
    if isinstance(expected, list) and isinstance(actual, list):
        return _of_lists(expected, actual, path)
    if _same(expected, actual):
        return None
    return f"{path}: expected {expected!r}, got {actual!r}"


def _of_objects(expected: dict[str, Answer], actual: dict[str, Answer], path: str) -> str | None:
    if "error" in expected and "error" in actual:
        return _of_errors(expected, actual, path)
    if expected.keys() != actual.keys():
        return f"{path}: expected {expected}, got {actual}"
    return _first(difference(expected[key], actual[key], f"{path}.{key}") for key in expected)


def _of_lists(expected: list[Answer], actual: list[Answer], path: str) -> str | None:
    if len(expected) != len(actual):
        return f"{path}: expected {expected}, got {actual}"
    pairs = enumerate(zip(expected, actual, strict=True))
    return _first(difference(*pair, f"{path}[{index}]") for index, pair in pairs)


def _of_errors(expected: dict[str, Answer], actual: dict[str, Answer], path: str) -> str | None:
    nearest = expected["error"][0]
    accepted = {nearest} | ACCEPTED.get(nearest, set())
    if not accepted & set(actual["error"]):
        return f"{path}: expected a {nearest}, got a {actual['error'][0]}"
    missing = [text for text, said in expected["says"].items() if said]
    missing = [text for text in missing if not actual["says"].get(text)]
    return f"{path}: the message does not say {missing}" if missing else None


def _first(differences: Iterator[str | None]) -> str | None:
    return next((found for found in differences if found), None)


def _same(expected: Answer, actual: Answer) -> bool:
    if isinstance(expected, float) and isinstance(actual, float):
        same = math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return same or (math.isnan(expected) and math.isnan(actual))
    if {str(expected), str(actual)} <= INTEGERS:
        return True
    return type(expected) is type(actual) and expected == actual

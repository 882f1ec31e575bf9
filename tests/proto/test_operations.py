from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.programs.operations import (
    INT64,
    OPERATIONS,
    SCALAR_OPERATIONS,
    Effect,
    Number,
    Operation,
    evaluate_scalar,
)

# The result shares memory, though the schema does not say so.
_SILENT_VIEWS = {"aten._unsafe_view.default"}

_ALIAS = {Effect.NEW: None, Effect.VIEW: False, Effect.WRITE: True}


def is_written(argument: object) -> bool | None:
    alias = getattr(argument, "alias_info", None)
    return None if alias is None else alias.is_write


def keeps_to_its_schema(operation: Operation) -> bool:
    effect, schema = _ALIAS[operation.effect], operation.schema
    return (
        {is_written(one) for one in schema.returns} == {effect}
        and not any(is_written(one) for one in schema.arguments[1:])
        and (effect is None or is_written(schema.arguments[0]) is effect)
        and (effect is None or schema.arguments[0].name == "self")
    )


def test_operations_do_to_memory_what_their_schemas_say() -> None:
    wrong = {one.name for one in OPERATIONS.values() if not keeps_to_its_schema(one)}
    assert wrong == _SILENT_VIEWS


def test_every_result_is_a_tensor() -> None:
    returned = {
        str(one.real_type) for operation in OPERATIONS.values() for one in operation.schema.returns
    }
    assert returned == {"Tensor"}


def test_no_operation_depends_on_chance_files_memory_or_contents_for_its_size() -> None:
    parameters = {
        parameter.type for operation in OPERATIONS.values() for parameter in operation.parameters
    }
    assert not any("Generator" in type_ for type_ in parameters)
    suspicious = re.compile(
        r"rand|normal|bernoulli|dropout|empty|file|\.nonzero|unique|item|scalar_dense"
        "|resize|set_|strided|storage|data|pickle|print"
    )
    assert not [name for name in OPERATIONS if suspicious.search(name)]


def test_an_operation_that_is_not_listed_is_not_there() -> None:
    assert "aten.from_file.default" not in OPERATIONS
    assert "aten.empty.memory_format" not in OPERATIONS


def test_a_number_may_not_decide_the_size_of_a_result() -> None:
    for name in (
        "arange.start_step",
        "full.default",
        "zeros.default",
        "repeat.default",
    ):
        for parameter in OPERATIONS[f"aten.{name}"].parameters:
            assert not (parameter.takes_number and parameter.name != "fill_value")


finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
whole = st.integers(min_value=INT64.start, max_value=INT64.stop - 1)
operands = st.one_of(whole, finite, st.integers(-70, 70))


@given(st.sampled_from(sorted(SCALAR_OPERATIONS)), operands, operands)
def test_arithmetic_gives_a_64_bit_number_or_fails_with_a_python_error(
    name: str, left: Number, right: Number
) -> None:
    unary = name.split(".")[1] in {"abs", "exp", "log", "neg", "sqrt"}
    try:
        result = evaluate_scalar(name, *([left] if unary else [left, right]))
    except (ArithmeticError, ValueError):
        return
    assert type(result) is float or result in INT64


@given(finite, whole)
def test_arithmetic_is_pythons_own(left: float, right: int) -> None:
    assert evaluate_scalar("scalar.add", left, right) == left + right
    assert evaluate_scalar("scalar.mul", left, right) == left * right
    assert evaluate_scalar("scalar.abs", left) == abs(left)


def test_a_huge_power_is_refused_before_it_is_computed() -> None:
    with pytest.raises(OverflowError):
        evaluate_scalar("scalar.pow", 10, 10**18)


def test_a_complex_result_is_refused() -> None:
    with pytest.raises(ValueError, match="complex"):
        evaluate_scalar("scalar.pow", -1.0, 0.5)
    assert evaluate_scalar("scalar.sqrt", 2.0) == math.sqrt(2.0)

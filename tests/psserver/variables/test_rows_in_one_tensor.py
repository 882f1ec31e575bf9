"""Rows of several variables that are read as one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from stratagem_proto.errors import (
    InvalidArgumentError,
    RowIndexError,
    StratagemError,
    VariableNotFoundError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_BFLOAT16, DATA_TYPE_FLOAT32
from tests.psserver.tables.specs import UNIFORM, table_spec
from tests.psserver.tables.test_tables_over_the_wire import ADAGRAD, update_rows
from tests.psserver.wire import RawClient, model_spec

DENSE = torch.arange(12.0).view(3, 4)
NAMES = ["dense", "users", "words"]


@pytest.fixture
def client(client: RawClient) -> RawClient:
    """Has a tensor, a table of a vocabulary, some rows of which are stored, and one of keys."""
    tables = [table_spec("users", (1000, 4), UNIFORM), table_spec("words", (0, 4))]
    others = [model_spec("narrow", torch.ones(3, 2)), model_spec("scalar", torch.ones(()))]
    client.create_as(
        [model_spec("dense", DENSE), *tables, *others],
        [DENSE, torch.ones(3, 2), torch.ones(())],
    )
    update_rows(client, ADAGRAD, {"users": ([1, 5], torch.ones(2, 4))})
    return client


def joint(rows: Sequence[Sequence[int]], names: Sequence[str] = NAMES) -> pb.JointRows:
    flat = torch.tensor([row for each in rows for row in each], dtype=torch.int64)
    indices = flat.numpy().tobytes()
    return pb.JointRows(variables=names, sizes=list(map(len, rows)), indices=indices)


def alone(client: RawClient, name: str, rows: Sequence[int]) -> torch.Tensor:
    indices = torch.tensor(rows, dtype=torch.int64).numpy().tobytes()
    selection = pb.Selection(variable=name, rows=pb.Rows(indices=indices))
    return client.select(pb.ReadRequest(selections=[selection]))[1][0]


def test_they_are_those_of_each_variable_in_their_order(client: RawClient) -> None:
    rows = [2, 0, 2], [5, 999, 1, 0], [-7, 1 << 60]
    expected = torch.cat([alone(client, *each) for each in zip(NAMES, rows, strict=True)])
    rounded = joint(rows)
    rounded.narrowed_to = DATA_TYPE_BFLOAT16
    request = pb.ReadRequest(
        selections=[pb.Selection(variable="narrow")], joint_rows=[joint(rows), rounded]
    )
    header, (whole, found, narrow) = client.select(request)
    assert torch.equal(whole, torch.ones(3, 2))
    assert torch.equal(found, expected)
    assert torch.equal(narrow, expected.bfloat16())
    assert list(header.versions) == [1, 0, 0]


def test_a_variable_may_have_none_of_them_and_come_twice(client: RawClient) -> None:
    rows = joint([[1], [], [2, 0]], ["dense", "users", "dense"])
    _, (found,) = client.select(pb.ReadRequest(joint_rows=[rows]))
    assert torch.equal(found, DENSE[[1, 2, 0]])


def changed(**fields: object) -> Callable[[], pb.JointRows]:
    def make() -> pb.JointRows:
        rows = joint([[0], [1], [2]])
        for name, value in fields.items():
            if isinstance(value, list):
                del getattr(rows, name)[:]
                getattr(rows, name).extend(value)
            else:
                setattr(rows, name, value)
        return rows

    return make


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (changed(variables=["dense", "users", "none"]), VariableNotFoundError, "none"),
        (changed(variables=["dense"]), InvalidArgumentError, "1 variables.* 3 sizes"),
        (changed(variables=[], sizes=[], indices=b""), InvalidArgumentError, "name each variable"),
        (changed(sizes=[1, 1]), InvalidArgumentError, "3 variables.* 2 sizes"),
        (changed(sizes=[1, 1, 2]), InvalidArgumentError, "3 rows .* add up to 4"),
        (changed(sizes=[1, 1, (1 << 64) - 1]), InvalidArgumentError, "add up to"),
        (changed(indices=bytes(25)), InvalidArgumentError, "25 bytes"),
        (changed(variables=["dense", "users", "narrow"]), InvalidArgumentError, "'narrow'.* shape"),
        (changed(variables=["scalar"] * 3), InvalidArgumentError, "'scalar'"),
        (changed(narrowed_to=DATA_TYPE_FLOAT32), InvalidArgumentError, "narrowed"),
        (lambda: joint([[0, 3], [1], [2]]), RowIndexError, "'dense'.* 3 rows"),
        (lambda: joint([[0], [1, -1], [2]]), RowIndexError, "'users'.* 1000 rows"),
        (lambda: joint([[0], [1000], []]), RowIndexError, "'users'.* 1000 rows"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    client: RawClient, make: Callable[[], pb.JointRows], error: type[StratagemError], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.select(pb.ReadRequest(joint_rows=[make()]))

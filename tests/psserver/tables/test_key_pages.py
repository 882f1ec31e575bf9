"""Listing the keys of a table page by page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    VariableNotFoundError,
)
from stratagem_proto.key_index import MOST_KEYS, page_of
from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.wire.tensors import int64_vector
from tests.psserver.tables.specs import table_spec
from tests.psserver.wire import RawClient

INT64 = st.integers(-(2**63), 2**63 - 1)


def pages(keys: torch.Tensor, limit: int) -> Iterator[list[int]]:
    after, more = None, True
    while more:
        page, more = page_of(keys, after, limit)
        yield page.tolist()
        after = int(page[-1]) if len(page) else after


@given(st.lists(INT64, unique=True, max_size=30), st.integers(1, 12))
def test_pages_have_all_keys_in_ascending_order(keys: list[int], limit: int) -> None:
    found = list(pages(torch.tensor(keys, dtype=torch.int64), limit))
    assert [key for page in found for key in page] == sorted(keys)
    assert all(len(page) == limit for page in found[:-1])
    assert len(found) == max(1, -(-len(keys) // limit))


@pytest.mark.parametrize("limit", [0, MOST_KEYS + 1])
def test_a_page_has_a_largest_size(limit: int) -> None:
    keys = torch.arange(MOST_KEYS + 10)
    page, more = page_of(keys, None, limit)
    assert more
    assert torch.equal(page, keys[:MOST_KEYS])


def listed(client: RawClient, table: str, **settings: object) -> ListKeysResponse:
    request = ListKeysRequest(session_id=client.session_id, table=table, **settings)  # type: ignore[arg-type] # by name
    return client.unary("ListKeys", request, ListKeysResponse)


def keys_of(response: ListKeysResponse) -> list[int]:
    found: list[int] = int64_vector(response.keys).tolist()
    return found


def test_a_server_lists_keys_that_were_written(client: RawClient) -> None:
    client.create_as([table_spec("items", (0, 2)), table_spec("users", (100, 2))], [])
    for table, keys in (("items", [9, -(2**63), 2**63 - 1]), ("users", [99, 0])):
        client.assign(table, torch.ones(len(keys), 2), rows=torch.tensor(keys))
    first = listed(client, "items", limit=2)
    assert (keys_of(first), first.more) == ([-(2**63), 9], True)
    rest = listed(client, "items", after=9)
    assert (keys_of(rest), rest.more) == ([2**63 - 1], False)
    assert keys_of(listed(client, "users")) == [0, 99]


def test_what_has_no_keys_is_refused(client: RawClient) -> None:
    client.create(dense=torch.zeros(2))
    with pytest.raises(InvalidArgumentError, match="'dense' is not a table"):
        listed(client, "dense")
    with pytest.raises(VariableNotFoundError, match="no variable 'items'"):
        listed(client, "items")
    with pytest.raises(FailedPreconditionError, match="no longer has the snapshot"):
        listed(client, "dense", snapshot=b"c" * 16)

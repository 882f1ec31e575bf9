"""One tree, one table, both sides of the border."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from stratagem_proto import errors
from stratagem_proto.errors import StratagemError
from stratagem_proto.v1.error_pb2 import ErrorDetail, RecordedStatus
from stratagem_proto.wire import status
from stratagem_proto.wire.status import STATUS_CODES


def tree(root: type[StratagemError] = StratagemError) -> Iterator[type[StratagemError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


# What a package raises and catches by itself never crosses.
ALL_ERRORS = [error for error in tree() if error.__module__ == StratagemError.__module__]


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_every_error_has_a_status_and_is_drawn(cls: type[StratagemError]) -> None:
    assert cls in STATUS_CODES
    assert errors.__doc__ is not None
    assert cls.__name__ in errors.__doc__


@pytest.mark.parametrize("cls", ALL_ERRORS)
def test_an_error_crosses_the_border_unchanged(cls: type[StratagemError]) -> None:
    sent = cls("what, where", variable="v", task="/job:ps/task:0", location="a.py:1")
    received = status.from_record(status.to_record(sent))
    assert type(received) is cls
    assert received.__dict__ == sent.__dict__


@pytest.mark.parametrize("code", list(grpc.StatusCode)[1:])
def test_every_bare_status_becomes_an_error(code: grpc.StatusCode) -> None:
    received = status.from_record(RecordedStatus(code=code.value[0], message="m"))
    assert STATUS_CODES[type(received)] is code


def test_a_foreign_exception_does_not_leak_its_text() -> None:
    record = status.to_record(KeyError("secret"))
    assert "KeyError" in record.message
    assert "secret" not in record.message


class FailedCall(grpc.RpcError):
    """A finished call as grpc raises it."""

    def __init__(self, *trailers: tuple[str, bytes]) -> None:
        self._trailers = trailers

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "connection refused"

    def trailing_metadata(self) -> Any:
        return self._trailers


def test_a_failure_below_our_servers_names_peer_and_method() -> None:
    with (
        pytest.raises(errors.UnavailableError, match=r"Read on ps:0 .*: connection"),
        status.translated("ps:0 at localhost:1", "Read"),
    ):
        raise FailedCall()


def test_a_server_that_is_away_is_told_without_the_words_of_the_library() -> None:
    refused = r"^Read on ps:0: no connection could be made: Connection refused$"
    with (
        grpc.insecure_channel("127.0.0.1:1") as channel,
        pytest.raises(errors.UnavailableError, match=refused),
        status.translated("ps:0", "Read"),
    ):
        read: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/service/Read")
        read(b"", timeout=30)


def test_a_failure_of_our_servers_keeps_its_own_words() -> None:
    detail = ErrorDetail(error="SessionLostError", task="/job:ps/task:0")
    call = FailedCall((status.DETAIL_KEY, detail.SerializeToString()))
    error = status.from_rpc_error(call, "ps:0", "Read")
    assert type(error) is errors.SessionLostError
    assert str(error) == "connection refused"


def test_a_damaged_detail_falls_back_to_the_status() -> None:
    error = status.from_rpc_error(FailedCall((status.DETAIL_KEY, b"\xff")), "p", "Read")
    assert type(error) is errors.UnavailableError


def test_a_replica_that_is_not_the_primary_says_which_one_is() -> None:
    refusal = errors.NotPrimaryError("this is the backup", task="/job:ps/task:0")
    refusal.primary, refusal.epoch = "10.0.0.2:2222", 7
    record = status.to_record(refusal)
    received = status.from_record(record)
    assert isinstance(received, errors.NotPrimaryError)
    assert (received.primary, received.epoch) == ("10.0.0.2:2222", 7)
    call = FailedCall(*status.trailers(record))
    assert status.is_transient(call)

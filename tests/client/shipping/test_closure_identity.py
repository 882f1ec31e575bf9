"""Servers recognise the requests of a scheduled function that runs again."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratagem._ps_client.names import next_closure_key, running
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from tests.client.one_copy import OneCopy

CLOSURE = ClosureIdentity(space=b"coordinator 1234", number=7)


def in_a_thread(function: Callable[[], ClosureKey | None]) -> ClosureKey | None:
    answers: list[ClosureKey | None] = []
    thread = threading.Thread(target=lambda: answers.append(function()))
    thread.start()
    thread.join()
    return answers[0]


def test_the_mutations_of_each_server_are_numbered_apart() -> None:
    with running(CLOSURE):
        keys = [next_closure_key(server) for server in ("a", "b", "a", "a")]
    assert [key.ordinal for key in keys if key] == [1, 1, 2, 3]
    assert all(key.identity == CLOSURE for key in keys if key)


def test_a_function_that_runs_again_begins_anew() -> None:
    for _ in range(2):
        with running(CLOSURE):
            first = next_closure_key("a")
        assert first == ClosureKey(identity=CLOSURE, ordinal=1)


def test_what_no_scheduled_function_asks_has_no_key() -> None:
    with running(CLOSURE), running(None):
        assert next_closure_key("a") is None
    assert next_closure_key("a") is None


def test_a_thread_that_a_function_starts_itself_does_not_belong_to_it() -> None:
    with running(CLOSURE):
        assert in_a_thread(lambda: next_closure_key("a")) is None


def test_the_replicas_of_a_function_belong_to_it() -> None:
    keys: list[ClosureKey | None] = []
    with running(CLOSURE):
        OneCopy(2).run(lambda: keys.append(next_closure_key("a")))
    assert keys == [ClosureKey(identity=CLOSURE, ordinal=one) for one in (1, 2)]

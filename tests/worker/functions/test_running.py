"""Functions run on a worker server, and come back as results or errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stratagem
from stratagem._core.contexts import experimental_get_current_worker_index
from stratagem._ps_client.names import next_closure_key
from stratagem._shipping.outcome_forms import PICKLED
from stratagem._worker_client.link import WorkerLink
from stratagem._worker_client.wire import ClosureFailure, FailureKind
from stratagem_proto.errors import WorkerFunctionError
from stratagem_proto.v1.session_pb2 import ClosureIdentity, ClosureKey
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.conftest import TOKEN
from tests.waiting import eventually
from tests.worker.links import (
    PATIENCE,
    Handle,
    connected,
    definition_of,
    loaded,
    payload_of,
    result,
)

ran: list[tuple[int, int]] = []


def failure(link: WorkerLink, closure: int, payload: bytes) -> ClosureFailure:
    error = link.run(closure, payload).exception(PATIENCE)
    assert isinstance(error, ClosureFailure)
    return error


def note(number: int) -> None:
    ran.append((number, threading.get_ident()))


def noting(number: int) -> Callable[[], None]:
    return lambda: note(number)


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_a_function_leaves_no_scope_behind(link: WorkerLink) -> None:
    def stay_in_scope() -> bool:
        stratagem.experimental_set_strategy(stratagem.OneDeviceStrategy("cpu"))
        return stratagem.has_strategy()

    assert result(link, 1, stay_in_scope)
    assert not result(link, 2, stratagem.has_strategy)
    assert result(link, 3, stay_in_scope)


def test_a_function_runs_on_the_worker_and_its_result_comes_back(
    link: WorkerLink,
) -> None:
    assert result(link, 1, lambda: torch.arange(3).sum().item()) == 3


def test_one_thread_runs_functions_in_the_order_in_which_they_were_sent(
    link: WorkerLink,
) -> None:
    ran.clear()
    futures = [link.run(n, payload_of(noting(n))) for n in range(50)]
    for future in futures:
        future.result(PATIENCE)
    assert [number for number, _ in ran] == list(range(50))
    assert len({thread for _, thread in ran} | {threading.get_ident()}) == 2


def test_two_clients_take_turns_on_one_worker(worker: WorkerServer) -> None:
    ran.clear()
    with connected(worker) as first, connected(worker) as second:
        links = [first, second] * 10
        futures = [link.run(n, payload_of(noting(n))) for n, link in enumerate(links)]
        for future in futures:
            future.result(PATIENCE)
    assert sorted(number for number, _ in ran) == list(range(20))
    assert len({thread for _, thread in ran}) == 1


@pytest.mark.parametrize("nbytes", [0, (1 << 20) - 1, 1 << 20, (3 << 20) + 5])
def test_payloads_of_any_size_travel_both_ways(link: WorkerLink, nbytes: int) -> None:
    data = torch.arange(nbytes).to(torch.uint8).numpy().tobytes()
    assert result(link, nbytes, lambda: data[::-1]) == data[::-1]


def test_an_exception_arrives_with_its_class_and_the_traceback_of_the_function(
    link: WorkerLink,
) -> None:
    found = failure(link, 1, payload_of(raising(ZeroDivisionError("how"))))
    assert found.kind is FailureKind.FUNCTION
    assert type(found.exception) is ZeroDivisionError
    assert found.exception.args == ("how",)
    first, second, *_ = found.traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    assert second.endswith(", in fail")


def test_a_function_that_exits_does_not_end_its_worker(link: WorkerLink) -> None:
    found = failure(link, 1, payload_of(raising(SystemExit(3))))
    assert isinstance(found.exception, WorkerFunctionError)
    assert found.exception.class_name == "SystemExit"
    assert result(link, 2, lambda: "goes on") == "goes on"


def test_of_an_exception_that_cannot_be_pickled_the_words_arrive(worker: WorkerServer) -> None:
    class OwnError(Exception):
        def __init__(self, lock: object, words: str) -> None:
            super().__init__(words)
            self.lock = lock

    def fail() -> None:
        raise OwnError(threading.Lock(), "the words")

    with connected(worker, outcomes=PICKLED) as link:
        found = failure(link, 1, payload_of(fail))
    assert type(found.exception) is WorkerFunctionError
    said = str(found.exception)
    assert "OwnError, which could not be pickled there (TypeError: " in said
    assert said.endswith("lock' object): the words")


def test_a_result_that_cannot_be_pickled_is_an_error_of_the_function(
    link: WorkerLink,
) -> None:
    found = failure(link, 1, payload_of(threading.Lock))
    assert found.kind is FailureKind.FUNCTION
    assert isinstance(found.exception, TypeError)


def test_a_payload_that_cannot_be_loaded_is_an_error_of_the_input(
    link: WorkerLink,
) -> None:
    found = failure(link, 1, b"no pickle")
    assert found.kind is FailureKind.INPUT
    assert result(link, 2, lambda: "goes on") == "goes on"


# --- Objects -------------------------------------------------------------------


def after_append(link: WorkerLink, handle: int) -> Any:
    """What a function finds under a handle after another one has appended a 3."""
    link.run(10, payload_of(_Calling(list.append, Handle(handle), 3))).result(PATIENCE)
    copied = link.run(11, payload_of(_Calling(list.copy, Handle(handle))))
    return loaded(copied.result(PATIENCE).payload)


def test_each_function_has_a_value_of_its_own_of_a_result(link: WorkerLink) -> None:
    link.define(7, definition_of(7, [1, 2]))
    assert after_append(link, 7) == [1, 2]


def test_what_stays_on_the_worker_is_the_same_one_in_all_functions(link: WorkerLink) -> None:
    link.run(1, payload_of(_Calling(list, (1, 2))), keep_as=7).result(PATIENCE)
    assert after_append(link, 7) == [1, 2, 3]


def test_a_result_may_stay_on_the_worker(link: WorkerLink) -> None:
    kept = link.run(1, payload_of(threading.Lock), keep_as=9)
    assert kept.result(PATIENCE).payload == b""
    payload = link.run(2, payload_of(_Calling(_locked, Handle(9)))).result(PATIENCE).payload
    assert loaded(payload) is False


def test_a_released_object_is_gone(link: WorkerLink) -> None:
    link.define(7, definition_of(7, []))
    link.release([7])
    found = failure(link, 1, payload_of(_Calling(list.copy, Handle(7))))
    assert found.kind is FailureKind.INPUT
    assert "nothing under handle 7" in str(found.exception)


def test_clients_do_not_see_the_objects_of_each_other(
    worker: WorkerServer, link: WorkerLink
) -> None:
    link.define(7, definition_of(7, []))
    with connected(worker) as other:
        found = failure(other, 1, payload_of(_Calling(list.copy, Handle(7))))
    assert found.kind is FailureKind.INPUT


# --- Where functions run -------------------------------------------------------


def test_a_function_knows_its_worker() -> None:
    with (
        WorkerServer(WorkerSettings(token=TOKEN, task=3)) as third,
        connected(third, task=3) as link,
    ):
        assert result(link, 1, experimental_get_current_worker_index) == 3


def test_a_function_has_begun_when_its_future_says_so(link: WorkerLink) -> None:
    gate.clear()
    begun = link.run(1, payload_of(_wait_at_gate))
    waiting = link.run(2, payload_of(_wait_at_gate))
    entered.acquire(timeout=PATIENCE)
    eventually(begun.running)
    assert not waiting.running()
    gate.set()
    waiting.result(PATIENCE)


gate = threading.Event()
entered = threading.Semaphore(0)


def _wait_at_gate() -> None:
    entered.release()
    gate.wait(PATIENCE)


def _locked(lock: threading.Lock) -> bool:
    return lock.locked()


class _Calling:
    """A function with arguments among which are handles."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __call__(self) -> Any:
        return self.function(*self.arguments)


def test_a_function_knows_by_what_identity_servers_recognise_it(
    link: WorkerLink,
) -> None:
    identity = ClosureIdentity(space=b"coordinator 1234", number=70)

    def key() -> bytes | None:
        found = next_closure_key("server")
        return found.SerializeToString() if found else None

    payload = payload_of(key)
    answers = [
        loaded(link.run(number, payload, identity=which).result(PATIENCE).payload)
        for number, which in ((1, identity), (2, identity), (3, None))
    ]
    first = ClosureKey(identity=identity, ordinal=1).SerializeToString()
    assert answers == [first, first, None]

"""How long a worker server serves a client, and what remains of that."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from stratagem._ps_client.transport import TrafficMeter
from stratagem._shipping.outcome_forms import PLAIN
from stratagem._worker_client.link import WorkerLink, WorkStream
from stratagem._worker_client.wire import ClosureAnswer, ClosureFailure, FailureKind, GrpcWire
from stratagem_proto.errors import (
    CancelledError,
    SessionLostError,
    UnavailableError,
    WorkerLostError,
)
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.error_pb2 import RecordedStatus
from stratagem_proto.wire.status import translated
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.channel import AUTO, GRPC, TCP, TRANSPORT_VARIABLE, UNIX, open_channel
from stratagem_rpc.sockets.client import SocketLink, endpoints
from stratagem_rpc.sockets.frames import FrameKind
from stratagem_worker.server import WorkerServer
from stratagem_worker.settings import WorkerSettings
from tests.certified import certified
from tests.conftest import TOKEN
from tests.rpc_methods import worker_method
from tests.waiting import eventually
from tests.worker.links import (
    PATIENCE,
    Handle,
    connected,
    definition_of,
    loaded,
    opening,
    payload_of,
    refuses,
    result,
)

PATH = b"/stratagem_proto.v1.WorkerService/Work"

entered = threading.Semaphore(0)
gate = threading.Event()
interrupted = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def closed_gate() -> None:
    gate.clear()
    for semaphore in (entered, interrupted):
        while semaphore.acquire(blocking=False):
            pass


def wait_at_gate() -> str:
    entered.release()
    assert gate.wait(PATIENCE)
    return "through"


def spin() -> None:
    entered.release()
    try:
        while True:
            pass
    except BaseException:
        interrupted.release()
        raise


def has_entered() -> bool:
    return entered.acquire(timeout=PATIENCE)


def another_entered() -> bool:
    return entered.acquire(blocking=False)


def was_interrupted() -> bool:
    return interrupted.acquire(timeout=PATIENCE)


# --- Giving up -----------------------------------------------------------------


def test_a_function_that_waits_is_given_up_without_a_trace(link: WorkerLink) -> None:
    first = link.run(1, payload_of(wait_at_gate))
    second = link.run(2, payload_of(wait_at_gate))
    assert has_entered()
    link.cancel(2, interrupt=False)
    assert cancelled(second)
    gate.set()
    assert loaded(first.result(PATIENCE).payload) == "through"
    assert result(link, 3, another_entered) is False


def test_a_function_that_has_begun_may_be_let_go_on(link: WorkerLink) -> None:
    future = link.run(1, payload_of(wait_at_gate))
    assert has_entered()
    link.cancel(1, interrupt=False)
    gate.set()
    assert loaded(future.result(PATIENCE).payload) == "through"


def test_a_function_that_has_begun_is_interrupted(link: WorkerLink) -> None:
    future = link.run(1, payload_of(spin))
    assert has_entered()
    link.cancel(1)
    assert was_interrupted()
    assert cancelled(future)
    assert result(link, 2, lambda: "goes on") == "goes on"


def test_an_interruption_that_comes_too_late_hits_nobody(link: WorkerLink) -> None:
    for closure in range(0, 200, 2):
        ending = link.run(closure, payload_of(bool))
        link.cancel(closure)
        assert result(link, closure + 1, lambda: sum(range(1000))) == 499500
        assert ending.done()


def cancelled(future: Any) -> bool:
    error = future.exception(PATIENCE)
    assert isinstance(error, ClosureFailure)
    assert isinstance(error.exception, CancelledError)
    return error.kind is FailureKind.CANCELLED


# --- Ends ----------------------------------------------------------------------


class Thing:
    """Something that one can see go."""


def watched() -> Thing:
    thing = Thing()
    things.append(weakref.ref(thing))
    return thing


things: list[weakref.ref[Thing]] = []


@pytest.mark.parametrize("end", [WorkerLink.close, WorkerLink.connect])
def test_the_end_of_a_session_releases_what_it_had(
    link: WorkerLink, end: Callable[[WorkerLink], None]
) -> None:
    link.run(1, payload_of(watched), keep_as=5).result(PATIENCE)
    assert things[-1]() is not None
    end(link)
    eventually(lambda: things[-1]() is None)


def test_the_end_of_a_session_interrupts_what_runs(worker: WorkerServer) -> None:
    with connected(worker) as link:
        running = link.run(1, payload_of(spin))
        waiting = link.run(2, payload_of(wait_at_gate))
        assert has_entered()
    assert was_interrupted()
    for future in (running, waiting):
        assert isinstance(future.exception(PATIENCE), CancelledError)
    with connected(worker) as other:
        assert result(other, 1, another_entered) is False


def test_another_session_has_another_incarnation(link: WorkerLink) -> None:
    first = link.incarnation
    link.connect()
    assert len(link.incarnation) == 16
    assert link.incarnation != first


def test_a_client_that_falls_silent_loses_its_session() -> None:
    settings = WorkerSettings(token=TOKEN, lease_seconds=0.3)
    with WorkerServer(settings) as worker, open_channel(worker.address) as channel:
        silence = threading.Event()

        def requests() -> Any:
            yield opening(worker)
            silence.wait(PATIENCE)

        call = worker_method(channel, "Work")(requests(), timeout=PATIENCE)
        with (
            pytest.raises(SessionLostError, match=r"for 0\.3 s"),
            translated("the worker", "Work"),
        ):
            list(call)
        silence.set()


def large_result() -> bytes:
    entered.release()
    return bytes(16 << 20)


def test_a_silent_client_that_does_not_read_loses_its_session_too() -> None:
    settings = WorkerSettings(token=TOKEN, lease_seconds=0.3)
    with WorkerServer(settings) as worker, closing(socket_link(worker)) as link:
        first = opening(worker).SerializeToString()
        link.send(FrameKind.CALL, first, is_last=False, path=PATH)
        assert next(link.frames()).kind == FrameKind.MESSAGE
        run = pb.Run(closure=1, payload=payload_of(large_result))
        request = pb.WorkRequest(instructions=[pb.Instruction(run=run)])
        link.send(FrameKind.MESSAGE, request.SerializeToString(), is_last=False)
        assert has_entered()
        eventually(lambda: not worker._state._sessions)


def test_what_comes_with_the_handshake_is_obeyed_before_what_follows() -> None:
    settings = WorkerSettings(token=TOKEN)
    with WorkerServer(settings) as worker, closing(socket_link(worker)) as link:
        link.send(FrameKind.CALL, opening(worker).SerializeToString(), is_last=False, path=PATH)
        for number in (1, 2, 3):
            link.send(FrameKind.MESSAGE, running(number), is_last=False)
        assert link.receive().kind == FrameKind.MESSAGE
        link.send(FrameKind.MESSAGE, running(4), is_last=False)
        ended: list[int] = []
        while len(ended) < 4:
            events = pb.WorkResponse.FromString(bytes(link.receive().message)).events
            ended += [one.finished.closure for one in events if one.HasField("finished")]
        assert ended == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "data",
    [b"\xff", pb.WorkRequest(instructions=[pb.Instruction()]).SerializeToString()],
)
def test_a_session_on_this_host_ends_by_what_is_not_understood(data: bytes) -> None:
    settings = WorkerSettings(token=TOKEN)
    with WorkerServer(settings) as worker, closing(socket_link(worker)) as link:
        link.send(FrameKind.CALL, opening(worker).SerializeToString(), is_last=False, path=PATH)
        assert link.receive().kind == FrameKind.MESSAGE
        link.send(FrameKind.MESSAGE, data, is_last=False)
        answer = link.receive()
        assert answer.kind == FrameKind.STATUS
        code = RecordedStatus.FromString(bytes(answer.message)).code
        assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        eventually(lambda: not worker._state._sessions)


def socket_link(worker: WorkerServer) -> SocketLink:
    """A socket for the session of `opening`."""
    assert worker._state.frame_sockets is not None
    told = worker._state.frame_sockets.to(bytes(16))
    (endpoint, _) = endpoints(told, worker.address, AUTO)
    return SocketLink(endpoint)


def running(number: int) -> bytes:
    run = pb.Run(closure=number, payload=payload_of(bool))
    request = pb.WorkRequest(instructions=[pb.Instruction(run=run)])
    return request.SerializeToString()


def test_who_sends_does_not_wait_for_a_worker_that_does_not_read(
    worker: WorkerServer, link: WorkerLink
) -> None:
    assert link.way == UNIX
    in_time: list[bool] = []
    worker._loop._loop.call_soon_threadsafe(lambda: in_time.append(gate.wait(PATIENCE)))
    for handle in (5, 6):
        link.define(handle, definition_of(handle, bytes(handle << 20)))
    gate.set()
    both = [Handle(5), Handle(6)]
    assert result(link, 1, partial(sizes, both)) == [5 << 20, 6 << 20]
    assert in_time == [True]


def sizes(values: list[Any]) -> list[int]:
    return list(map(len, values))


def test_a_session_between_hosts_goes_on_by_the_data_port_with_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, TCP)
    authority = certified(tmp_path)
    settings = WorkerSettings(token=TOKEN, task=0, tls=authority.of("worker:0"))
    with (
        WorkerServer(settings) as worker,
        presenting(authority.of("chief:0=coordinator")),
        connected(worker) as link,
    ):
        assert link.way == TCP
        large = result(link, 1, lambda: bytes(3 << 20))
        assert large == bytes(3 << 20)


@pytest.mark.parametrize("transport", [AUTO, TCP, GRPC])
def test_a_session_fares_the_same_over_both_transports(
    worker: WorkerServer, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, transport)
    with connected(worker) as link:
        assert link.way == (UNIX if transport == AUTO else transport)
        assert result(link, 1, lambda: "done") == "done"
        large = result(link, 2, lambda: bytes(3 << 20))
        assert large == bytes(3 << 20)
        waiting = link.run(3, payload_of(wait_at_gate))
        assert has_entered()
        link.close()
        with pytest.raises(CancelledError, match="was closed before"):
            waiting.result(PATIENCE)
        gate.set()


def test_a_client_that_waits_keeps_its_session() -> None:
    settings = WorkerSettings(token=TOKEN, lease_seconds=1.0)
    with WorkerServer(settings) as worker, connected(worker) as link:
        assert result(link, 1, lambda: time.sleep(1.5)) is None


def test_a_worker_that_falls_silent_is_lost(
    worker: WorkerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a worker that is stopped: its beats are not heard."""
    wire = GrpcWire(worker.address, TOKEN, opening(worker).open, TrafficMeter())
    stream = WorkStream(wire, "the worker", lambda *_: None, TrafficMeter(), PLAIN)
    stream.open(PATIENCE)
    monkeypatch.setattr(stream, "_take", lambda response: None)
    future: Future[ClosureAnswer] = Future()
    stream.run(1, [], future)
    stream._start(stream._watch, "watch", 0.2)
    with pytest.raises(WorkerLostError, match="the worker was lost: nothing"):
        future.result(PATIENCE)
    wire.close()


# --- The end of the worker -----------------------------------------------------


def test_a_worker_that_stops_lets_its_function_end_and_gives_back_the_others() -> None:
    worker = WorkerServer(WorkerSettings(token=TOKEN))
    worker.start()
    with connected(worker) as link:
        leaves = threading.Event()
        link.when_leaving(leaves.set)
        running = link.run(1, payload_of(wait_at_gate))
        waiting = link.run(2, payload_of(wait_at_gate))
        assert has_entered()
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        eventually(lambda: refuses(worker.address))
        assert leaves.wait(PATIENCE)
        late = link.run(3, payload_of(wait_at_gate))
        for given_back in waiting, late:
            with pytest.raises(ClosureFailure, match="given up") as failure:
                given_back.result(PATIENCE)
            assert failure.value.kind is FailureKind.CANCELLED
        assert not running.done()
        gate.set()
        assert loaded(running.result(PATIENCE).payload) == "through"
        stopping.join(PATIENCE)
        assert not another_entered()
        with pytest.raises(WorkerLostError):
            link.run(4, payload_of(bool)).result(PATIENCE)


def threads_since(before: set[threading.Thread]) -> set[str]:
    """Names of the threads that have been begun and have not ended."""
    since = {thread.name for thread in set(threading.enumerate()) - before}
    return {name for name in since if "_poll_wrapper" not in name}


def test_a_stopped_worker_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    with WorkerServer(WorkerSettings(token=TOKEN)) as worker, connected(worker) as link:
        result(link, 1, lambda: None)
    eventually(lambda: not threads_since(before))


def test_a_worker_that_cannot_start_leaves_no_threads(worker: WorkerServer) -> None:
    before = set(threading.enumerate())
    second = WorkerServer(WorkerSettings(token=TOKEN, bind=worker.address))
    with pytest.raises(UnavailableError, match="cannot listen"):
        second.start()
    eventually(lambda: not threads_since(before))

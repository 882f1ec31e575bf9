"""A worker server that was taken over, among honest ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stratagem import ClosureInputError, MalformedStreamError, StratagemError
from stratagem._worker_client import link
from stratagem.coordinator import experimental_get_current_worker_index
from stratagem_proto.v1 import plain_value_pb2 as values
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_proto.v1.error_pb2 import ErrorDetail, RecordedStatus
from stratagem_worker.server import WorkerState
from stratagem_worker.session import WorkSession
from tests.client.coordinator.coordination import Coordination, coordinating
from tests.trap import unsprung

LARGE = 1 << 17

Lie = Callable[[WorkSession, int], pb.Finished]
"""What a hostile worker says of a closure of a number."""


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that nobody may load."""
    with unsprung(tmp_path) as found:
        yield found


@pytest.fixture
def coordination() -> Iterator[Coordination]:
    """Two workers, of which the first is hostile once `hostile` says so."""
    with coordinating(num_workers=2) as found:
        yield found


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lie], None]:
    """Lets worker 0 lie from now on: it runs nothing that the coordinator sends."""
    honest = WorkSession._finished

    def begin(lie: Lie) -> None:
        def finished(session: WorkSession, order: pb.Run, payload: bytes) -> pb.Finished:
            if session._settings.task == 0:
                return lie(session, order.closure)
            return honest(session, order, payload)

        monkeypatch.setattr(WorkSession, "_finished", finished)

    return begin


def enveloped(outline: values.PlainValue, buffers: bytes = b"") -> bytes:
    data = outline.SerializeToString()
    return len(data).to_bytes(4, "little") + data + buffers


def huge() -> bytes:
    buffer = values.Buffer(kind=values.BUFFER_KIND_TENSOR, dtype="float32", shape=(1 << 60,))
    return enveloped(values.PlainValue(buffer=buffer))


def deep() -> bytes:
    value = values.PlainValue(none=True)
    for _ in range(45):
        nest = values.Nest(kind=values.NEST_KIND_LIST, items=[value])
        value = values.PlainValue(nest=nest)
    return enveloped(value)


def of_a_class() -> bytes:
    name = values.ClassName(module="subprocess", name="Popen")
    items = [values.PlainValue(text=b"touch")]
    kind = values.NEST_KIND_NAMED_TUPLE
    return enveloped(values.PlainValue(nest=values.Nest(kind=kind, class_name=name, items=items)))


def fetched(coordination: Coordination) -> tuple[list[StratagemError], list[int]]:
    """What functions raise until an honest worker has run one, and which workers ran one."""
    coordinator = coordination.coordinator
    errors: list[StratagemError] = []
    workers: list[int] = []
    for _ in range(1000):
        found = [coordinator.schedule(experimental_get_current_worker_index) for _ in range(10)]
        for value in found:
            try:
                workers.append(value.fetch())
            except StratagemError as error:
                errors.append(error)
        if workers:
            break
    return errors, workers


@pytest.mark.parametrize("payload", [huge(), deep(), of_a_class(), b"", b"\xff" * 100])
def test_what_is_no_value_is_refused_by_name_and_others_go_on(
    coordination: Coordination, hostile: Callable[[Lie], None], payload: bytes
) -> None:
    hostile(lambda session, closure: pb.Finished(closure=closure, payload=payload))
    coordination.coordinator.remove_worker(1)
    with pytest.raises(StratagemError) as caught:
        coordination.coordinator.schedule(experimental_get_current_worker_index).fetch()
    assert str(caught.value).startswith("/job:worker/task:0 returned ")
    coordination.coordinator.add_worker(coordination.cluster.task_address("worker", 1))
    errors, workers = fetched(coordination)
    assert {str(error).partition(" returned ")[0] for error in errors} <= {"/job:worker/task:0"}
    assert {*workers} == {1}
    coordination.coordinator.join()


def places(trap: bytes) -> dict[str, pb.Finished]:
    """A pickle in each field of bytes and text that a worker may fill."""
    status = RecordedStatus(code=3, message="no", detail=ErrorDetail(error="os.system"))
    builtin = pb.BuiltinException(name="ValueError", args=trap)
    failures = {
        "exception": pb.Failure(exception=trap),
        "args": pb.Failure(told=pb.ToldException(builtin=builtin)),
        "status": pb.Failure(told=pb.ToldException(status=status), exception=trap),
        "original": pb.Failure(
            told=pb.ToldException(
                status=RecordedStatus(code=9, detail=ErrorDetail(error="ClosureInputError")),
                original=pb.ToldException(builtin=builtin),
            )
        ),
    }
    for failure in failures.values():
        failure.kind = pb.FAILURE_KIND_FUNCTION
        failure.class_name = failure.message = failure.traceback = trap.decode("latin-1")
    found = {name: pb.Finished(failure=failure) for name, failure in failures.items()}
    found["payload"] = pb.Finished(payload=trap)
    found["octets"] = pb.Finished(payload=enveloped(values.PlainValue(large_integer=trap)))
    return found


@pytest.mark.parametrize("place", [*places(b"")])
def test_no_pickle_is_loaded_wherever_it_stands(
    coordination: Coordination, hostile: Callable[[Lie], None], trap: bytes, place: str
) -> None:
    message = places(trap)[place]

    def lie(session: WorkSession, closure: int) -> pb.Finished:
        message.closure = closure
        return message

    hostile(lie)
    coordinator = coordination.coordinator
    values = [coordinator.schedule(experimental_get_current_worker_index) for _ in range(4)]
    for value in values:
        try:
            value.fetch()
        except StratagemError:
            continue
    try:
        coordinator.join()
    except StratagemError:
        coordinator.join()


def test_no_worker_loads_what_another_one_made_up(
    coordination: Coordination, hostile: Callable[[Lie], None], trap: bytes
) -> None:
    payload = trap + bytes(LARGE)

    def lie(session: WorkSession, closure: int) -> pb.Finished:
        return session.results.keep_if_large(pb.Finished(closure=closure, payload=payload))

    hostile(lie)
    coordinator = coordination.coordinator
    coordinator.remove_worker(1)
    made = coordinator.schedule(torch.zeros, args=(LARGE,))
    with pytest.raises(MalformedStreamError):
        made.fetch()
    coordinator.add_worker(coordination.cluster.task_address("worker", 1))
    coordinator.remove_worker(0)
    with pytest.raises(ClosureInputError, match="task:1 cannot load a result") as caught:
        coordinator.schedule(torch.sum, args=(made,)).fetch()
    assert type(caught.value.original_exception) is MalformedStreamError


def of_no_kind(session: WorkSession, closure: int) -> pb.Finished:
    return pb.Finished(closure=closure, failure=pb.Failure())


def without_end(session: WorkSession, closure: int) -> pb.Finished:
    for _ in range(8):
        session.outbox.put(pb.WorkEvent(piece=bytes(1 << 20)))
    return pb.Finished(closure=closure)


@pytest.mark.parametrize("lie", [of_no_kind, without_end])
def test_functions_of_a_worker_that_sends_what_nobody_takes_run_on_others(
    hostile: Callable[[Lie], None], monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> None:
    monkeypatch.setattr(link, "half_of_memory", lambda: 4 << 20)
    with coordinating(num_workers=1, max_worker_losses=None) as coordination:
        hostile(lie)
        value = coordination.coordinator.schedule(experimental_get_current_worker_index)
        coordination.coordinator.add_worker(coordination.start_new(1))
        assert value.fetch() == 1


def test_a_lease_without_end_is_refused(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = WorkerState.answer

    def answer(state: WorkerState, session: WorkSession) -> pb.WorkerSessionOpened:
        opened = honest(state, session)
        opened.session.lease_seconds = float("nan")
        return opened

    monkeypatch.setattr(WorkerState, "answer", answer)
    with pytest.raises(MalformedStreamError, match="gives a lease of nan s"):
        coordination.coordinator.add_worker(coordination.start_new(7))

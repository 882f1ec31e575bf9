"""Memory of large uploads: used again, counted, and given back."""

from __future__ import annotations

import pytest
import torch

from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.limits import Budget
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_psserver.uploads import UploadMemory
from tests.conftest import TOKEN
from tests.psserver.wire import RawClient

LARGE = 9 << 20  # elements of float32; more than what the allocator keeps
NBYTES = 4 * LARGE


def spec(elements: int = LARGE) -> TensorSpec:
    return TensorSpec(dtype=spec_of(torch.zeros(1)).dtype, shape=[elements])


def upload(memory: UploadMemory, budget: Budget, elements: int = LARGE) -> int:
    """Where the bytes of an upload came to be, which is answered then."""
    into = memory.take([spec(elements)], 4 * elements)
    with budget.reserve(4 * elements, "an upload") as reservation:
        (tensor,) = into.tensors()
        memory.keep(into, reservation)
    return tensor.data_ptr()


def test_an_upload_has_the_memory_of_one_like_it_that_was_answered() -> None:
    memory, budget = UploadMemory(), Budget(2 * NBYTES)
    assert upload(memory, budget) == upload(memory, budget)
    assert budget.used == NBYTES


def test_uploads_under_way_have_memory_of_their_own() -> None:
    memory, budget = UploadMemory(), Budget(4 * NBYTES)
    both = [memory.take([spec()], NBYTES) for _ in range(2)]
    for each in both:
        each.tensors()
        memory.keep(each, budget.reserve(NBYTES, "an upload"))
    again = [memory.take([spec()], NBYTES) for _ in range(2)]
    assert {id(each) for each in again} == {id(each) for each in both}
    assert budget.used == 0


def test_memory_is_kept_neither_of_small_uploads_nor_of_those_without() -> None:
    memory, budget = UploadMemory(), Budget(2 * NBYTES)
    upload(memory, budget, elements=100)
    with budget.reserve(NBYTES, "an upload") as reservation:
        memory.keep(memory.take([spec()], NBYTES), reservation)
    assert budget.used == 0


def test_what_is_not_used_between_two_trims_is_given_back() -> None:
    memory, budget = UploadMemory(), Budget(2 * NBYTES)
    upload(memory, budget)
    memory.trim()
    upload(memory, budget)
    memory.trim()
    assert budget.used == NBYTES
    memory.trim()
    assert budget.used == 0


@pytest.mark.full("rooms are counted byte by byte by the tests of limits")
def test_a_server_has_room_for_others_although_it_keeps_memory() -> None:
    settings = ServerSettings(token=TOKEN, staged_bytes=NBYTES * 3 // 2)
    with (
        ParameterServer(settings) as server,
        RawClient(server.address, TOKEN) as client,
    ):
        client.open()
        values = {"v": LARGE, "w": LARGE, "x": LARGE + 50}
        for name, elements in values.items():
            client.create(**{name: torch.zeros(elements)})
        for step in range(1, 3):
            for place, (name, elements) in enumerate(values.items()):
                client.assign(name, torch.full((elements,), float(step + place)))
            for place, name in enumerate(values):
                assert client.read(name)[0].unique().tolist() == [step + place]

"""A server refuses bad input with a typed error, and its state stays unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTypeError,
    MalformedStreamError,
    NotFoundError,
    ResourceExhaustedError,
    RowIndexError,
    StratagemError,
    VariableNotFoundError,
)
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1 import session_pb2
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32, TensorSpec
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_SET,
    AssignHeader,
    Assignment,
    AssignResponse,
    CreateVariablesResponse,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
)
from stratagem_proto.wire.frames import ChunkView, Frame, encode_frame
from stratagem_proto.wire.tensors import as_bytes, spec_of
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.psserver.wire import (
    LARGE,
    RawClient,
    encoded,
    sgd,
    slot_spec,
)


def mutation(
    method: str, build: Callable[[session_pb2.RequestKey], list[bytes]]
) -> Callable[[RawClient], object]:
    response_types = {
        "Assign": AssignResponse,
        "Update": pb.UpdateResponse,
        "CreateVariables": CreateVariablesResponse,
    }

    def send(client: RawClient) -> object:
        return client.upload(method, build(client.key()), response_types[method])

    return send


def assignment(key: session_pb2.RequestKey, value: torch.Tensor, name: str = "big") -> AssignHeader:
    item = Assignment(variable=name, mode=ASSIGN_MODE_SET, value=0)
    return AssignHeader(key=key, assignments=[item], tensors=[spec_of(value)])


def chunked(header: AssignHeader, *chunks: ChunkView) -> list[bytes]:
    """A stream whose chunks are what the test says."""
    return [encode_frame(Frame(header)), encode_frame(Frame(None, list(chunks)))]


BIG = torch.zeros(LARGE)
BYTES = as_bytes(BIG)
SMALL = torch.zeros(2, 3)

BAD_STREAMS: dict[str, Callable[[session_pb2.RequestKey], list[bytes]]] = {
    "truncated": lambda key: encoded(assignment(key, BIG), [BIG])[:1],
    "without data": lambda key: [encode_frame(Frame(assignment(key, BIG)))],
    "with a gap": lambda key: chunked(assignment(key, BIG), ChunkView(0, 4, BYTES[:8])),
    "with an overlap": lambda key: chunked(
        assignment(key, BIG), ChunkView(0, 0, BYTES[:8]), ChunkView(0, 4, BYTES[:8])
    ),
    "too long": lambda key: chunked(
        assignment(key, SMALL, "dense.weight"), ChunkView(0, 0, BYTES[:100])
    ),
    "for a tensor that is not announced": lambda key: chunked(
        assignment(key, BIG), ChunkView(1, 0, BYTES[:8])
    ),
    "with a second header": lambda key: [
        encode_frame(Frame(assignment(key, BIG))) for _ in range(2)
    ],
    "of garbage after the header": lambda key: [
        encode_frame(Frame(assignment(key, BIG))),
        b"\xff\xff\xff",
    ],
}


@pytest.mark.parametrize("kind", BAD_STREAMS)
def test_a_malformed_stream_changes_nothing(client: RawClient, kind: str) -> None:
    before = client.everything()
    with pytest.raises(MalformedStreamError) as caught:
        mutation("Assign", BAD_STREAMS[kind])(client)
    assert caught.value.task == "/job:ps/task:0"
    assert client.everything() == before
    client.assign("big", BIG)


@pytest.mark.parametrize("messages", [[], [b""], [b"\xff\xff"], [b"\x0a\x05abc"]])
def test_a_stream_without_a_readable_header_is_refused(
    client: RawClient, messages: list[bytes]
) -> None:
    with pytest.raises(MalformedStreamError):
        client.upload("Assign", messages, AssignResponse)


def step(
    gradients: dict[str, torch.Tensor], program: OptimizerProgram | None = None
) -> Callable[[RawClient], object]:
    return lambda client: client.update(program or sgd(), gradients)


def created(name: str, value: torch.Tensor) -> Callable[[RawClient], object]:
    return lambda client: client.create(**{name: value})


def described(shape: list[int]) -> Callable[[RawClient], object]:
    spec = TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=shape)
    return mutation(
        "Assign",
        lambda key: [encode_frame(Frame(AssignHeader(key=key, tensors=[spec])))],
    )


BAD_REQUESTS: dict[str, tuple[Callable[[RawClient], object], type[StratagemError]]] = {
    "shape of a gradient": (
        step({"big": torch.zeros(2), "dense.weight": SMALL}),
        InvalidArgumentError,
    ),
    "dtype of a gradient": (
        step({"dense.weight": SMALL, "big": BIG.double()}),
        InvalidTypeError,
    ),
    "unknown variable among known ones": (
        step({"dense.weight": SMALL + 1, "dense.wieght": SMALL}),
        VariableNotFoundError,
    ),
    "optimizer": (
        step({"big": BIG}, OptimizerProgram(name="o", class_name="Muon")),
        InvalidArgumentError,
    ),
    "shape of a value": (
        lambda client: client.assign("big", SMALL),
        InvalidArgumentError,
    ),
    "row": (
        lambda client: client.assign("dense.weight", SMALL[:1], rows=torch.tensor([2])),
        RowIndexError,
    ),
    "duplicate name": (created("big", SMALL), AlreadyExistsError),
    "empty name": (created("", SMALL), InvalidNameError),
    "long name": (created("n" * 513, SMALL), InvalidNameError),
    "characters of a name": (created("näme", SMALL), InvalidNameError),
    "owner of a slot": (
        lambda client: client.create_as([slot_spec("s", "nobody", SMALL)], [SMALL]),
        NotFoundError,
    ),
    "name to delete": (
        lambda client: client.unary(
            "DeleteVariables",
            DeleteVariablesRequest(key=client.key(), names=["big", "nobody"]),
            DeleteVariablesResponse,
        ),
        VariableNotFoundError,
    ),
    "step to commit": (
        lambda client: client.unary(
            "CommitContribution",
            pb.CommitContributionRequest(key=client.key(), step=pb.StepMark(group="g", step=1)),
            pb.CommitContributionResponse,
        ),
        FailedPreconditionError,
    ),
    "rank": (described([1] * 33), InvalidArgumentError),
    "strides beyond 64 bits": (described([0, 2**62, 2**62]), InvalidArgumentError),
    "update without a program": (
        mutation("Update", lambda key: [encode_frame(Frame(pb.UpdateHeader(key=key)))]),
        InvalidArgumentError,
    ),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_a_bad_request_gets_a_typed_error_and_changes_nothing(client: RawClient, what: str) -> None:
    """The server "validates it whole, and only then applies it"."""
    send, error = BAD_REQUESTS[what]
    client.update(sgd(), {"big": BIG})
    before = client.everything()
    with pytest.raises(error):
        send(client)
    assert client.everything() == before
    client.update(sgd(), {"big": BIG})


def test_an_unknown_variable_comes_with_the_nearest_name(client: RawClient) -> None:
    with pytest.raises(VariableNotFoundError, match=r"did you mean 'dense\.weight'") as e:
        client.read("dense.wieght")
    assert e.value.variable == "dense.wieght"


@pytest.mark.parametrize("character", ["x", "\N{SNOWMAN}"])
def test_an_error_arrives_though_it_quotes_what_is_too_long(
    client: RawClient, character: str
) -> None:
    program = sgd()
    program.groups[0].values[character * 100_000].flag = True
    with pytest.raises(InvalidArgumentError, match=r"has no hyperparameter .*\.\.\.$"):
        client.update(program, {"dense.weight": SMALL})


def test_a_request_beyond_the_budget_is_refused_before_its_data_comes() -> None:
    with (
        ParameterServer(ServerSettings(staged_bytes=1 << 20)) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=SMALL)
        before = client.everything()
        for size in (1 << 20, 1 << 40):
            spec = TensorSpec(dtype=DATA_TYPE_FLOAT32, shape=[size])
            header = AssignHeader(key=client.key(), tensors=[spec])
            with pytest.raises(ResourceExhaustedError, match="budget of 1048576"):
                client.upload("Assign", [encode_frame(Frame(header))], AssignResponse)
        assert client.everything() == before


def test_rows_beyond_the_budget_are_refused_before_they_are_gathered() -> None:
    with (
        ParameterServer(ServerSettings(staged_bytes=1 << 20)) as server,
        RawClient(server.address, "") as client,
    ):
        client.open()
        client.create(w=torch.ones(1, 100_000))
        # 400 GB: gathering them would fail in another way.
        rows = pb.Selection(variable="w", rows=pb.Rows(indices=bytes(8_000_000)))
        with pytest.raises(ResourceExhaustedError, match="a read needs 400000000000"):
            client.select(pb.ReadRequest(selections=[rows]))

"""Tables and made values on a running server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
import torch

from stratagem_deploy.processes.process import import_path
from stratagem_proto.division import PartRows
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    RowIndexError,
)
from stratagem_proto.programs.random_rows import InitialValues
from stratagem_proto.v1 import parameter_server_pb2 as pb
from stratagem_proto.v1.tensor_pb2 import DATA_TYPE_FLOAT32
from stratagem_proto.v1.update_program_pb2 import (
    REDUCTION_SUM,
    GraphArgument,
    GraphInput,
    GraphNode,
    GraphProgram,
    InputBinding,
    OptimizerProgram,
    UpdateProgram,
)
from stratagem_proto.v1.variable_pb2 import TableStatistics, VariableSpec
from stratagem_proto.v1.variable_requests_pb2 import (
    ASSIGN_MODE_ADD,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    DescribeVariablesRequest,
    DescribeVariablesResponse,
)
from stratagem_proto.wire.tensors import spec_of
from stratagem_psserver.server import ParameterServer
from tests.conftest import TOKEN
from tests.psserver.tables.specs import UNIFORM, ZEROS, dynamic, made, parts, table_spec
from tests.psserver.wire import (
    RawClient,
    encoded,
    model_spec,
    optimizer_program,
    sgd,
    slot_spec,
)

BILLION = table_spec("users", (1_000_000_000, 16))
ADAGRAD = optimizer_program(torch.optim.Adagrad([torch.empty(0)], lr=0.1))

Gradients = Mapping[str, tuple[Sequence[int], torch.Tensor]]


def read_rows(client: RawClient, name: str, *rows: int) -> torch.Tensor:
    keys = torch.tensor(rows, dtype=torch.int64)
    selection = pb.Selection(variable=name, rows=pb.Rows(indices=keys.numpy().tobytes()))
    return client.select(pb.ReadRequest(selections=[selection]))[1][0]


def update_rows(
    client: RawClient,
    program: OptimizerProgram,
    gradients: Gradients,
    contribution: pb.Contribution | None = None,
) -> pb.UpdateResponse:
    tensors: list[torch.Tensor] = []
    references = []
    for name, (rows, values) in gradients.items():
        reference = pb.GradientRef(variable=name, tensor=len(tensors), rows=len(tensors) + 1)
        references.append(reference)
        tensors += [values, torch.tensor(rows, dtype=torch.int64)]
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(optimizer=program),
        gradients=references,
        tensors=map(spec_of, tensors),
        contribution=contribution,
    )
    return client.upload("Update", encoded(header, tensors), pb.UpdateResponse)


def statistics(client: RawClient, name: str) -> TableStatistics:
    request = DescribeVariablesRequest(session_id=client.session_id, names=[name])
    response = client.unary("DescribeVariables", request, DescribeVariablesResponse)
    return response.variables[0].table


def test_variables_without_a_tensor_are_made_by_the_server(client: RawClient) -> None:
    sent = torch.arange(6.0).reshape(2, 3)
    specs = [made(table_spec("a", (3, 5), UNIFORM)), model_spec("b", sent), BILLION]
    response = client.create_as(specs, [sent])
    assert [info.spec.name for info in response.variables] == ["a", "b", "users"]
    a, b = client.read("a", "b")
    assert torch.equal(a, InitialValues(specs[0]).whole())
    assert torch.equal(b, sent)


def test_rows_of_a_huge_table_are_read_assigned_and_stepped(client: RawClient) -> None:
    client.create_as([BILLION], [])
    rows = [999_999_999, 0, 7]
    before = read_rows(client, "users", *rows)
    assert torch.equal(before, InitialValues(BILLION).rows(torch.tensor(rows)))
    client.assign("users", torch.ones(1, 16), rows=torch.tensor([0]))
    client.assign(
        "users",
        torch.ones(2, 16),
        mode=ASSIGN_MODE_ADD,
        rows=torch.tensor([7, 7]),
    )
    gradients = {"users": ([999_999_999], torch.ones(1, 16))}
    assert update_rows(client, sgd(0.5), gradients).versions == [4]
    expected = torch.stack([before[0] - 0.5, torch.ones(16), before[2] + 2])
    assert torch.equal(read_rows(client, "users", *rows), expected)
    assert statistics(client, "users").rows == 3


@pytest.mark.parametrize(("number", "in_turn"), [(1, False), (3, False), (3, True)])
def test_tables_train_alike_in_any_number_of_parts(
    client: RawClient, number: int, in_turn: bool
) -> None:
    whole = table_spec("items", (1_000_000_000, 4))
    specs = parts(whole, number, in_turn) if number > 1 else [whole]
    client.create_as(specs, [])
    rows = torch.arange(0, 1_000_000_000, 12_345_678)
    parameter = torch.nn.Parameter(InitialValues(whole).rows(rows))
    local = torch.optim.Adagrad([parameter], lr=0.1)
    for step in range(3):
        values = torch.full((len(rows), 4), step + 0.3)
        parameter.grad = torch.sparse_coo_tensor(
            torch.arange(len(rows)).unsqueeze(0), values, check_invariants=False
        )
        local.step()
        update_rows(client, ADAGRAD, shared_out(specs, rows, values))
    for spec, (mine, _) in zip(specs, shared_out(specs, rows, values).values(), strict=True):
        read = read_rows(client, spec.name, *mine)
        assert torch.equal(read, parameter[PartRows.from_spec(spec).has(rows)])


def shared_out(
    specs: Sequence[VariableSpec], rows: torch.Tensor, values: torch.Tensor
) -> dict[str, tuple[list[int], torch.Tensor]]:
    shares = {}
    for spec in specs:
        part = PartRows.from_spec(spec)
        mine = part.has(rows)
        shares[spec.name] = (part.local(rows[mine]).tolist(), values[mine])
    return shares


def test_a_row_that_a_part_has_not_is_told_with_those_of_the_whole_that_it_has(
    client: RawClient,
) -> None:
    specs = parts(table_spec("items", (7, 4)), 2, is_interleaved=True)
    client.create_as(specs, [])
    with pytest.raises(RowIndexError, match="it has 3 rows, from 0, every 2 rows from row 1 of"):
        read_rows(client, "items/part_1", 3)


def test_keys_of_a_dynamic_table_are_any_numbers(client: RawClient) -> None:
    client.create_as([table_spec("words", (0, 4), table=dynamic(max_rows=3))], [])
    lowest, highest = -(1 << 63), (1 << 63) - 1
    for keys in ([lowest], [highest, 0], [-1]):
        values = torch.ones(len(keys), 4)
        client.assign("words", values, rows=torch.tensor(keys))
    assert read_rows(client, "words", highest, 0, -1).eq(1).all()
    described = InitialValues(table_spec("words", (0, 4)))
    assert torch.equal(read_rows(client, "words", lowest), described.rows(torch.tensor([lowest])))
    found = statistics(client, "words")
    assert (found.rows, found.evicted_rows) == (3, 1)


def test_synchronous_steps_add_up_the_rows_of_all_workers(
    client: RawClient, server: ParameterServer
) -> None:
    client.create_as([table_spec("users", (1_000_000_000, 16), ZEROS)], [])
    with RawClient(server.address, TOKEN) as second:
        second.open()
        for worker, (each, rows) in enumerate(((client, [1, 2]), (second, [2, 3]))):
            contribution = pb.Contribution(
                step=MARK,
                worker=worker,
                num_workers=2,
                replicas=1,
                reduction=REDUCTION_SUM,
            )
            gradients = {"users": (rows, torch.ones(2, 16))}
            update_rows(each, sgd(1.0), gradients, contribution)
            commit = pb.CommitContributionRequest(key=each.key(), step=MARK)
            each.unary("CommitContribution", commit, pb.CommitContributionResponse)
    read = read_rows(client, "users", 1, 2, 3, 4)
    assert read[:, 7].tolist() == [-1.0, -2.0, -1.0, 0.0]


MARK = pb.StepMark(group="SGD", step=1)


def test_a_small_table_is_read_whole_and_a_large_one_is_not(client: RawClient) -> None:
    small = table_spec("small", (100, 4))
    client.create_as([small, BILLION, table_spec("words", (0, 4))], [])
    client.assign("small", torch.zeros(1, 4), rows=torch.tensor([5]))
    expected = InitialValues(small).whole()
    expected[5] = 0
    assert torch.equal(client.read("small")[0], expected)
    for name in ("users", "words"):
        with pytest.raises(InvalidArgumentError, match="Read the rows that are needed"):
            client.read(name)
    box = pb.Slice(start=[0, 0], size=[1, 1])
    with pytest.raises(InvalidArgumentError, match="Read the rows that are needed"):
        selection = pb.Selection(variable="small", slice=box)
        client.select(pb.ReadRequest(selections=[selection]))


def test_what_a_table_cannot_do_is_refused_and_changes_nothing(
    client: RawClient,
) -> None:
    client.create_as([BILLION, table_spec("tiny", (4, 16))], [])
    with pytest.raises(InvalidArgumentError, match="but the variable is a table"):
        client.assign("users", torch.zeros(1, 16))
    with pytest.raises(RowIndexError, match="it has 1000000000 rows"):
        read_rows(client, "users", 1_000_000_000)
    good = ([1], torch.ones(1, 16))
    with pytest.raises(RowIndexError, match="it has 4 rows"):
        bad = ([4], torch.ones(1, 16))
        update_rows(client, sgd(), {"users": good, "tiny": bad})
    with pytest.raises(InvalidArgumentError, match="which update programs neither"):
        run_graph_on(client, "users")
    assert statistics(client, "users").rows == 0
    assert client.listing()["users"] == 1


def run_graph_on(client: RawClient, name: str) -> None:
    written = GraphInput(kind=GraphInput.KIND_WRITE, dtype=DATA_TYPE_FLOAT32)
    itself = GraphArgument(value=0)
    doubling = GraphNode(operation="aten.add_.Tensor", arguments=[itself, itself])
    program = GraphProgram(inputs=[written], nodes=[doubling])
    header = pb.UpdateHeader(
        key=client.key(),
        program=UpdateProgram(graph=program),
        bindings=[InputBinding(variable=name)],
    )
    client.upload("Update", encoded(header, []), pb.UpdateResponse)


def test_a_table_that_is_deleted_takes_its_state_along(client: RawClient) -> None:
    client.create_as([BILLION], [])
    update_rows(client, ADAGRAD, {"users": ([3], torch.ones(1, 16))})
    slots = {name for name in client.listing() if name.startswith("users/")}
    assert slots == {"users/Adagrad/step", "users/Adagrad/sum"}
    assert read_rows(client, "users/Adagrad/sum", 3, 4)[:, 0].tolist() == [1.0, 0.0]
    request = DeleteVariablesRequest(key=client.key(), names=["users"])
    client.unary("DeleteVariables", request, DeleteVariablesResponse)
    assert not {name for name in client.listing() if name.startswith("users")}


def test_a_made_value_larger_than_the_budget_is_refused(client: RawClient) -> None:
    before = client.listing()
    with pytest.raises(MemoryError, match="making initial values needs 64000000000"):
        client.create_as([made(BILLION)], [])
    assert client.listing() == before


def test_state_of_a_table_that_is_no_table_is_refused(client: RawClient) -> None:
    small = table_spec("small", (4, 2))
    client.create_as([small], [])
    state = torch.zeros(4, 2)
    client.create_as([slot_spec("small/RMSprop/square_avg", "small", state)], [state])
    rmsprop = optimizer_program(torch.optim.RMSprop([torch.empty(0)]))
    with pytest.raises(FailedPreconditionError, match="the optimizer needs a table"):
        update_rows(client, rmsprop, {"small": ([3], torch.ones(1, 2))})


MEMORY_OF_A_BILLION_ROWS = """
import resource, sys, torch
from stratagem_psserver.optimization.gradients import Gradient
from tests.psserver.tables.specs import hosting, table_of, table_spec
from tests.psserver.wire import optimizer_program

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
spec = table_spec("users", (10**9, 16))
store, optimizers = hosting(spec)
program = optimizer_program(torch.optim.Adagrad([torch.empty(0)]))
rows = torch.randint(10**9, (100_000,)).unique().split(5000)

def step(some):
    gradient = Gradient("users", 0, torch.ones(len(some), 16), some)
    taken = optimizers.prepare(program, [gradient])
    taken.run()
    optimizers.commit(taken)

step(rows[0])
before = resident()
for some in rows[1:]:
    step(some)
table = table_of(store.get("users"))
print(len(table), table.nbytes, resident() - before)
"""


@pytest.mark.full("it takes five seconds of rows")
def test_memory_follows_the_rows_that_were_touched() -> None:
    """A table of 64 GB, of which 100 000 rows and their state take 13 MB."""
    command = [sys.executable, "-c", MEMORY_OF_A_BILLION_ROWS]
    environment = import_path()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows, nbytes, grown = map(int, done.stdout.split())
    assert 99_900 < rows <= 100_000
    assert nbytes < 30_000_000
    assert grown < 60_000_000

"""Functions and variables on their way to workers."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
from torch import Tensor

import stratagem
from stratagem import DistributedOptimizer, ShardedVariable, Variable
from stratagem._remote_kinds import KINDS
from stratagem._shipping.call import FunctionCall
from stratagem._shipping.import_allowlist import AnyCode
from stratagem._shipping.kinds import (
    Definition,
    RemoteObject,
    WorkerTask,
)
from stratagem._shipping.loader import Loader
from stratagem._shipping.outcome_forms import PICKLED, PLAIN, OutcomeForm
from stratagem.partitioners import FixedShardsPartitioner
from stratagem_deploy.processes.process import import_path
from tests.client.clusters import running
from tests.client.shipping.coordination import Coordination, by_value, coordinating
from tests.conftest import TOKEN


@pytest.fixture(scope="module")
def coordination() -> Iterator[Coordination]:
    with coordinating() as found:
        yield found


def variable_of(coordination: Coordination, value: Any, **traits: Any) -> Any:
    return coordination.built(lambda: Variable(value, **traits))


def twice(value: Any) -> Any:
    return 2 * value


def test_a_function_of_a_module_is_named(coordination: Coordination) -> None:
    parcel = coordination.closure_pickler.dump(twice)
    assert len(parcel.payload) < 150
    assert coordination.load(parcel) is twice


def test_a_function_travels_as_it_is_each_time(coordination: Coordination) -> None:
    amount = 1
    function = by_value(lambda: amount)
    call = FunctionCall(function, (), {})
    assert coordination.ship(call)() == 1
    assert (
        coordination.closure_pickler.dump(call).payload
        == coordination.closure_pickler.dump(call).payload
    )
    amount = 2
    assert coordination.ship(call)() == 2


def test_a_call_that_travels_again_names_what_it_named(
    coordination: Coordination,
) -> None:
    v = variable_of(coordination, 1.0)
    call = FunctionCall(by_value(lambda: v.assign_add(1)), (), {})
    first, again = (coordination.closure_pickler.dump(call) for _ in range(2))
    assert (first.payload, first.definitions) == (again.payload, again.definitions)
    assert coordination.load(again, worker=1)().numpy() == 2


def test_a_function_of_the_main_program_is_contained(
    coordination: Coordination,
) -> None:
    factor = 3
    shipped = coordination.ship(by_value(lambda value: factor * twice(value)))
    assert shipped(5) == 30


def test_a_function_brings_along_the_submodules_that_it_uses(
    coordination: Coordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that were loaded after it travelled first."""
    package = tmp_path / "shipped_package"
    package.mkdir()
    for name in ("__init__", "early", "late", "other"):
        (package / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    shipped_package = import_module("shipped_package")

    def sent() -> bytes:
        return coordination.closure_pickler.dump(function).payload

    function = by_value(lambda: (shipped_package.early, shipped_package.late))
    import_module("shipped_package.early")
    import_module("shipped_package.other")
    assert b"shipped_package.early" in sent()
    assert b"shipped_package.late" not in sent()
    import_module("shipped_package.late")
    assert b"shipped_package.late" in sent()
    assert b"shipped_package.other" not in sent()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float64).reshape(2, 3),
        torch.randn(3, 3).t()[1:],
        torch.tensor(True),
        torch.empty(0, 4, dtype=torch.bfloat16),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.ones(2, requires_grad=True),
        torch.eye(2).to_sparse(),
    ],
    ids=["matrix", "view", "scalar", "empty", "conjugate", "leaf", "sparse"],
)
def test_tensors_arrive_as_they_are(coordination: Coordination, tensor: Tensor) -> None:
    arrived = coordination.ship({"found": [tensor]})["found"][0]
    assert torch.equal(arrived.to_dense(), tensor.to_dense())
    assert (arrived.dtype, arrived.layout) == (tensor.dtype, tensor.layout)
    assert arrived.requires_grad == tensor.requires_grad


def test_a_view_does_not_bring_its_storage_along(coordination: Coordination) -> None:
    parcel = coordination.closure_pickler.dump(torch.zeros(100_000)[:10])
    assert len(parcel.payload) < 500


def test_a_shipped_function_changes_the_variable(coordination: Coordination) -> None:
    v = variable_of(coordination, 1.0)
    shipped = coordination.ship(lambda: v.assign_add(1))
    assert shipped().numpy() == 2
    assert v.numpy() == 2


def test_a_variable_is_one_object_per_worker(coordination: Coordination) -> None:
    v = variable_of(coordination, [1.0, 2.0], trainable=False, name="pair")
    first, again = coordination.ship((v, v))
    assert first is again is coordination.ship(v)
    assert first is not coordination.ship(v, worker=1)
    assert (first.name, first.trainable, first.dtype) == (v.name, False, v.dtype)
    assert first.device_name == v.device_name
    assert first.synchronization is v.synchronization


def test_what_a_worker_has_is_not_sent_again(coordination: Coordination) -> None:
    v = variable_of(coordination, 1.0)
    parcel = coordination.closure_pickler.dump(v)
    assert coordination.define(parcel) >= 1
    assert coordination.define(coordination.closure_pickler.dump([v, v])) == 0


def test_variables_are_found_by_name_whatever_the_order(
    coordination: Coordination,
) -> None:
    made = [variable_of(coordination, float(number)) for number in range(3)]
    for number in 2, 0, 1:
        assert coordination.ship(made[number], worker=1).numpy() == number


def test_run_works_in_a_shipped_function(coordination: Coordination) -> None:
    strategy, v = coordination.strategy, variable_of(coordination, 2.0)

    def replica_step(x: Tensor) -> Any:
        context = stratagem.get_replica_context()
        assert context is not None
        v.assign_add(x)
        return context.strategy

    shipped = coordination.ship(lambda x: strategy.run(replica_step, args=(x,)))
    theirs = shipped(torch.tensor(3.0))
    assert v.numpy() == 5
    assert theirs is not strategy
    assert isinstance(theirs, stratagem.ParameterServerStrategy)
    assert theirs is coordination.ship(strategy)
    assert coordination.ship(strategy.extended) is theirs.extended
    assert theirs.cluster_resolver.task_type == "worker"
    assert theirs.cluster_resolver.task_id == 0


def test_all_settings_that_tasks_share_reach_workers(
    coordination: Coordination,
) -> None:
    own = {"self", "cluster_resolver", "variable_partitioner", "placement", "token"}
    settings = signature(stratagem.ParameterServerStrategy.__init__).parameters.keys()
    ours = coordination.strategy._settings.of_all_tasks()
    assert ours.keys() == settings - own
    theirs = coordination.ship(coordination.strategy)
    assert theirs._settings.of_all_tasks() == ours


def test_partials_and_methods_bring_variables_along(
    coordination: Coordination,
) -> None:
    v = variable_of(coordination, 1.0)
    coordination.ship(partial(twice, v))
    coordination.ship(v.assign)(7.0)
    assert v.numpy() == 7


def test_sharded_variables_are_attached_shard_by_shard() -> None:
    with coordinating(variable_partitioner=FixedShardsPartitioner(2)) as coordination:
        v = variable_of(coordination, torch.arange(10.0).reshape(5, 2))
        assert isinstance(v, ShardedVariable)
        shipped = coordination.ship(lambda: v.assign_add(torch.ones(5, 2)))
        theirs = shipped()
        assert torch.equal(v.read_value(), torch.arange(10.0).reshape(5, 2) + 1)
        assert torch.equal(theirs.sparse_read([4, 0]), v.sparse_read([4, 0]))
        assert coordination.ship(v.variables[1]) is theirs.variables[1]
        assert theirs.variables[1]._shard_of == v.name


def test_a_parcel_has_no_token(coordination: Coordination) -> None:
    strategy, v = coordination.strategy, variable_of(coordination, 1.0)
    strategy.cluster_resolver.cluster_token = TOKEN
    resolver = strategy.cluster_resolver
    parcel = coordination.closure_pickler.dump((strategy, strategy.extended, v, resolver))
    sent = [parcel.payload, *(one.encode() for one in parcel.definitions)]
    assert not any(TOKEN.encode() in one for one in sent)
    assert coordination.load(parcel)[3].task_type == "worker"


def test_what_belongs_to_no_strategy_travels_as_ever(
    coordination: Coordination,
) -> None:
    module = torch.nn.Linear(2, 2)
    shipped = coordination.ship(module)
    assert torch.equal(shipped.weight, module.weight)
    assert shipped is not coordination.ship(module)


def test_handles_go_with_their_objects(coordination: Coordination) -> None:
    module = coordination.built(lambda: torch.nn.Linear(2, 1))
    coordination.closure_pickler.gone()
    parcel = coordination.closure_pickler.dump(module)
    handle = max(one.handle for one in parcel.definitions if one.kind == "module")
    del module
    gc.collect()
    assert coordination.closure_pickler.gone() == []  # the parcel may yet be sent
    assert coordination.load(parcel) is coordination.worker().find(handle)
    del parcel
    gc.collect()
    assert coordination.closure_pickler.gone() == [handle]
    coordination.worker().release([handle])
    with pytest.raises(stratagem.NotFoundError, match=f"handle {handle}"):
        coordination.worker().find(handle)


class Kept(RemoteObject):
    """Stands for what workers keep."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def _shipped_handle(self) -> int:
        return self.handle

    def _shipped_subject(self) -> object:
        return self


def test_what_stands_for_kept_things_becomes_what_the_worker_keeps(
    coordination: Coordination,
) -> None:
    kept = Kept(coordination.closure_pickler.new_handle())
    for index in range(2):
        coordination.worker(index).keep(kept.handle, f"of worker {index}")
    parcel = coordination.closure_pickler.dump({"kept": kept})
    assert parcel.remote_objects.keys() == {kept.handle}
    assert coordination.load(parcel, 0) == {"kept": "of worker 0"}
    assert coordination.load(parcel, 1) == {"kept": "of worker 1"}


@pytest.mark.parametrize("form", [PLAIN, PICKLED], ids=["plain", "pickled"])
def test_a_result_can_be_defined_on_another_worker(
    coordination: Coordination, form: OutcomeForm
) -> None:
    kept = Kept(coordination.closure_pickler.new_handle())
    result = form.dump({"sum": torch.tensor(3.0)})
    definition = Definition.of_result(kept.handle, result, form.kind.name)
    coordination.worker().define(kept.handle, definition.encode())
    found = coordination.ship(kept)
    assert torch.equal(found["sum"], torch.tensor(3.0))


@pytest.mark.parametrize("form", [PLAIN, PICKLED], ids=["plain", "pickled"])
def test_results_have_values_in_the_place_of_variables(
    coordination: Coordination, form: OutcomeForm
) -> None:
    v = variable_of(coordination, 4.0)
    loss = (v.value() * 2).sum()
    result = form.load(form.dump([v, loss, None, "text"]), "a worker")
    assert [type(one) for one in result] == [Tensor, Tensor, type(None), str]
    assert (float(result[0]), float(result[1])) == (4, 8)
    assert not result[1].requires_grad


def test_nothing_is_created_under_the_strategy_of_a_worker(
    coordination: Coordination,
) -> None:
    theirs = coordination.ship(coordination.strategy)
    with pytest.raises(ValueError, match="make it in the program"), theirs.scope():
        Variable(1.0)
    with pytest.raises(ValueError, match="parameters, Linear"), theirs.scope():
        made = torch.nn.Linear(1, 1)
    assert made.weight is not None
    v = variable_of(coordination, 1.0)
    leaf = coordination.ship(v).value()
    with pytest.raises(ValueError, match="an optimizer, SGD"):
        DistributedOptimizer(torch.optim.SGD([leaf], lr=1.0))


PROGRAM = """
import sys
from pathlib import Path
import torch
from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem._remote_objects.modules import COORDINATOR_KINDS
from stratagem._shipping.closure_pickler import ClosurePickler
from stratagem.cluster_resolver import SimpleClusterResolver

jobs = {"chief": ["c.test:1"], "worker": ["w.test:1"], "ps": sys.argv[2].split()}
resolver = SimpleClusterResolver(ClusterSpec(jobs), task_type="chief", task_id=0)
strategy = ParameterServerStrategy(resolver, token=sys.argv[3])


class Doubling(torch.nn.Linear):
    def forward(self, features):
        return SCALE * super().forward(features)


SCALE = 2.0
with strategy.scope():
    model = Doubling(3, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)


def predict(features):
    return strategy.run(model, args=(features,))


parcel = ClosurePickler(strategy, COORDINATOR_KINDS).dump(predict)
sent = [parcel.payload, *((one.handle, one.encode()) for one in parcel.definitions)]
Path(sys.argv[1]).write_bytes(__import__("pickle").dumps(sent))
strategy.close()
"""


@pytest.mark.full("classes of __main__ are shipped by value as those of the tests are")
def test_a_program_ships_its_own_classes_to_another_process(tmp_path: Path) -> None:
    with running(2) as cluster:
        program, sent = tmp_path / "program.py", tmp_path / "sent"
        program.write_text(PROGRAM)
        arguments = [str(sent), " ".join(cluster.servers), TOKEN]
        paths = import_path()
        command = [sys.executable, str(program), *arguments]
        run(command, check=True, timeout=60, env=os.environ | paths)
        payload, *definitions = pickle.loads(sent.read_bytes())
        loader = Loader(WorkerTask(0, TOKEN), KINDS, PLAIN, AnyCode())
        for handle, definition in definitions:
            loader.define(handle, definition)
        predict = loader.load(payload)
        assert predict.__module__ == "__main__"
        assert torch.equal(predict(torch.ones(1, 3)), torch.tensor([[6.0]]))
        loader.close()

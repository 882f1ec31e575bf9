"""One module object that several replicas use, each with leaves of its own."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import stratagem
from stratagem import PerReplica, Variable
from stratagem._core.contexts import updating
from stratagem._hosting.hosted_parameter import (
    HostedParameter,
    hosted_parameter,
)
from stratagem._hosting.torch_patches import Following
from tests.client.one_copy import OneCopy, hosting_in

BATCHES = [torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(features).tanh())
        return output


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied mlp": Mlp,
    "lstm": lambda: nn.LSTM(8, 4, num_layers=2, bidirectional=True),
    "gru": lambda: nn.GRU(8, 4, bias=False),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)),
}


def loss_of(model: Any, features: Tensor) -> Any:
    output = model(features)
    return (output[0] if isinstance(output, tuple) else output).square().mean()


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.fixture
def strategy() -> OneCopy:
    return OneCopy(replicas=2)


def built(strategy: OneCopy, make: Callable[[], nn.Module]) -> tuple[Any, Any]:
    """A hosted module and a plain one with the same values."""
    torch.manual_seed(0)
    plain = make()
    torch.manual_seed(0)
    with strategy.scope():
        hosted = make()
    return hosted, plain


def expected_gradients(plain: nn.Module) -> list[list[Tensor]]:
    expected = []
    for batch in BATCHES:
        plain.zero_grad()
        loss_of(plain, batch).backward()
        expected.append(gradients_of(plain))
    return expected


@pytest.mark.parametrize("kind", MODELS)
def test_each_replica_gets_the_gradients_of_its_own_batch(kind: str, strategy: OneCopy) -> None:
    model, plain = built(strategy, MODELS[kind])

    def step(features: Tensor) -> list[Tensor]:
        loss_of(model, features).backward()
        return gradients_of(model)

    got = strategy.run(step, args=(PerReplica(BATCHES),))
    for replica, expected in enumerate(expected_gradients(plain)):
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.equal(mine.values[replica], theirs)


def gradients_at_the_same_time(strategy: OneCopy, model: nn.Module) -> list[list[Tensor]]:
    """What two replicas get that go through the module in two threads."""

    def replica(index: int) -> list[Tensor]:
        with updating(strategy, index):
            loss_of(model, BATCHES[index]).backward()
            return gradients_of(model)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(replica, range(2)))


@pytest.mark.parametrize("kind", MODELS)
def test_replicas_that_run_at_the_same_time_do_not_mix(kind: str, strategy: OneCopy) -> None:
    model, plain = built(strategy, MODELS[kind])
    got = gradients_at_the_same_time(strategy, model)
    torch.testing.assert_close(got, expected_gradients(plain), rtol=0, atol=0)


class MeetingLstm(nn.LSTM):
    """Lets two forwards meet after torch has looked at the cached weights."""

    meeting = threading.Barrier(2)
    hosted = False

    def check_forward_args(self, *args: Any) -> None:
        if self.hosted:
            self.meeting.wait(timeout=60)
        super().check_forward_args(*args)


def test_recurrent_replicas_do_not_share_a_cache_of_weights(strategy: OneCopy) -> None:
    model, plain = built(strategy, lambda: MeetingLstm(8, 4))
    model.hosted = True
    got = gradients_at_the_same_time(strategy, model)
    torch.testing.assert_close(got, expected_gradients(plain), rtol=0, atol=0)


def test_leaves_share_the_storage_of_the_users_parameter(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)

    def seen() -> tuple[int, int]:
        parameter = next(model.parameters())
        assert isinstance(parameter, nn.Parameter) and parameter.is_leaf
        return id(parameter), parameter.data_ptr()

    identities, addresses = strategy.run(seen)
    own = next(model.parameters())
    assert identities.values[0] == id(own) != identities.values[1]
    assert addresses.values == (own.data_ptr(), own.data_ptr())


def test_one_replica_leaves_the_module_as_it_is() -> None:
    strategy = OneCopy(replicas=1)
    with strategy.scope():
        model = nn.LSTM(2, 2)
    assert type(model._parameters) is dict
    assert type(model) is nn.LSTM
    assert strategy.run(lambda: model.weight_ih_l0) is model.weight_ih_l0


def test_a_state_dict_has_the_users_values_everywhere(strategy: OneCopy) -> None:
    model, plain = built(strategy, MODELS["lstm"])
    outside = model.state_dict()
    assert list(outside) == list(plain.state_dict())
    inside = strategy.run(model.state_dict)
    for key, value in plain.state_dict().items():
        assert torch.equal(outside[key], value)
        assert torch.equal(inside[key].values[1], value)


def test_a_loaded_state_reaches_the_variable_and_every_replica(
    strategy: OneCopy,
) -> None:
    model, _ = built(strategy, Mlp)
    state = {name: torch.full_like(p, 2.0) for name, p in model.state_dict().items()}
    model.load_state_dict(state)
    totals = strategy.run(lambda: model.first.weight.sum().item())
    assert totals.values == (128.0, 128.0)
    for hosted in hosting_in(strategy).parameters:
        assert (hosted.variable.numpy() == 2.0).all()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_parameter_put_in_place_of_a_hosted_one_is_hosted(replicas: int) -> None:
    strategy = OneCopy(replicas)
    model, _ = built(strategy, Mlp)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    state = {name: torch.full_like(p, 2.0) for name, p in model.state_dict().items()}
    model.load_state_dict(state, assign=True)

    def step() -> Any:
        value = model.first.weight.mean().item()
        (model.first.weight + model.second.weight).sum().backward()
        optimizer.step()
        return value

    values = strategy.run(step)
    assert strategy.experimental_local_results(values) == (2.0,) * replicas
    strategy.run(lambda: None)
    assert model.first.weight is model.second.weight
    assert torch.equal(model.first.weight, torch.zeros(8, 8))
    assert hosted_parameter(model.first.weight) is not None


def test_a_write_under_no_grad_reaches_the_variable(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)
    with torch.no_grad():
        model.first.bias.fill_(3.0)
    strategy.run(lambda: None)
    (hosted,) = [h for h in hosting_in(strategy).parameters if h.name == "first.bias"]
    assert torch.equal(hosted.variable.value(), torch.full((8,), 3.0))


@pytest.mark.parametrize("replica", [0, 1])
def test_a_write_in_a_replica_is_seen(replica: int, strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)

    def write() -> None:
        context = stratagem.get_replica_context()
        assert context is not None
        if context.replica_id_in_sync_group == replica:
            with torch.no_grad():
                model.first.bias.add_(1.0)

    strategy.run(write)
    written = hosting_in(strategy).parameters.written_locally()
    assert [hosted.name for hosted in written] == ["first.bias"]


def test_freezing_reaches_every_replica_and_is_no_write(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)
    model.requires_grad_(False)
    assert hosting_in(strategy).parameters.written_locally() == []
    flags = strategy.run(lambda: [p.requires_grad for p in model.parameters()])
    assert flags == [False, False, False]
    model.first.bias.requires_grad_(True)
    assert strategy.run(lambda: model.first.bias.requires_grad) is True


def test_leaves_follow_a_parameter_whose_storage_changes(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)
    model.first.bias.data = torch.full((8,), 5.0)
    sums = strategy.run(lambda: model.first.bias.sum().item())
    assert sums.values == (40.0, 40.0)


@pytest.mark.parametrize("kind", MODELS)
def test_a_deep_copy_is_a_module_of_its_own(kind: str, strategy: OneCopy) -> None:
    model, plain = built(strategy, MODELS[kind])
    copied = copy.deepcopy(model)
    assert all(type(m._parameters) is dict for m in copied.modules())
    assert not any(isinstance(m, Following) for m in copied.modules())
    assert all(hosted_parameter(p) is None for p in copied.parameters())
    loss_of(copied, BATCHES[0]).backward()
    assert not gradients_of(model)
    for mine, theirs in zip(gradients_of(copied), expected_gradients(plain)[0], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("kind", ["tied mlp", "lstm", "encoder layer"])
def test_a_pickled_module_loads_as_an_ordinary_one(kind: str, strategy: OneCopy) -> None:
    model, plain = built(strategy, MODELS[kind])
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for restored in (
        torch.load(file, weights_only=False),
        pickle.loads(pickle.dumps(model)),
    ):
        assert not any(isinstance(m, Following) for m in restored.modules())
        assert torch.equal(loss_of(restored, BATCHES[0]), loss_of(plain, BATCHES[0]))


def test_a_moved_module_keeps_its_replicas_apart(strategy: OneCopy) -> None:
    model, _ = built(strategy, MODELS["lstm"])
    model.to("cpu").to(torch.float32)

    def step(features: Tensor) -> list[Tensor]:
        loss_of(model, features).backward()
        return gradients_of(model)

    first, *_ = strategy.run(step, args=(PerReplica(BATCHES),))
    assert not torch.equal(first.values[0], first.values[1])


def test_functional_call_puts_the_leaves_back(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)

    def step(features: Tensor) -> bool:
        before = list(model.parameters())
        zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        output = torch.func.functional_call(model, zeros, (features,))
        after = list(model.parameters())
        same = all(a is b for a, b in zip(before, after, strict=True))
        return same and not output.any()

    assert strategy.run(step, args=(PerReplica(BATCHES),)) is True


def test_pruning_moves_a_hosted_parameter_with_its_replicas(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(8, 1, bias=False)
    prune.random_unstructured(model, "weight", 0.5)
    assert "weight" not in model._parameters

    def step(features: Tensor) -> Tensor:
        loss_of(model, features).backward()
        (gradient,) = gradients_of(model)
        return gradient

    gradients = strategy.run(step, args=(PerReplica(BATCHES),))
    assert not torch.equal(*gradients.values)


def test_every_way_to_read_the_parameters_gives_the_replicas_leaves(
    strategy: OneCopy,
) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)

    def read() -> list[bool]:
        leaf, table = model.weight, model._parameters
        ways = [
            table["weight"],
            table.get("weight"),
            dict(table)["weight"],
            {**table}["weight"],
            table.copy()["weight"],
            dict(table.items())["weight"],
            next(iter(table.values())),
            copy.copy(model).weight,
        ]
        return [way is leaf for way in ways]

    assert strategy.run(read) == [True] * 8
    assert model._parameters.get("nothing") is None
    assert model._parameters.pop("nothing", None) is None
    assert len(model._parameters) == 2


def test_a_removed_parameter_is_gone_for_all(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
    del model.bias
    model.register_parameter("bias", None)
    assert strategy.run(lambda: model.bias) is None
    assert strategy.run(lambda: model(torch.ones(1, 2)).shape) == (1, 2)


@pytest.mark.full("a compiled function runs in each replica")
def test_compiled_modules_work_in_every_replica(strategy: OneCopy) -> None:
    model, plain = built(strategy, Mlp)
    compiled = torch.compile(model, backend="eager")

    def step(features: Tensor) -> list[Tensor]:
        loss_of(compiled, features).backward()
        return gradients_of(model)

    got = strategy.run(step, args=(PerReplica(BATCHES),))
    for replica, expected in enumerate(expected_gradients(plain)):
        for mine, theirs in zip(got, expected, strict=True):
            assert torch.equal(mine.values[replica], theirs)


def test_a_refresh_between_forward_and_backward_is_caught(strategy: OneCopy) -> None:
    model, _ = built(strategy, Mlp)
    loss = loss_of(model, BATCHES[0])
    strategy.run(lambda: None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_follows_a_variable_elsewhere_once_per_write() -> None:
    parameter, variable = nn.Parameter(torch.zeros(2)), Variable(torch.zeros(2))
    hosted = HostedParameter(variable, parameter, [torch.device("cpu")])
    variable.assign([1.0, 2.0])
    hosted.follow_variable()
    assert parameter.tolist() == [1.0, 2.0]
    version = parameter._version
    hosted.follow_variable()
    assert parameter._version == version
    assert not hosted.written_locally()

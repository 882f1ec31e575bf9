"""Which modules a scope adopts, and under which names."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stratagem
from tests.client.one_copy import OneCopy, hosting_in, names_in


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(5, 3)
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.layers(self.users(ids)) * self.scale
        return output


PROTOTYPE = Recommender()


class Held(nn.Module):
    """Parameters in containers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.many = nn.ParameterList([torch.zeros(2), torch.zeros(3)])
        self.named = nn.ParameterDict({"a": torch.zeros(4)})


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Embedding(5, 3)
        self.decode = nn.Linear(3, 5, bias=False)
        self.decode.weight = self.encode.weight


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Recommender,
    "lstm": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "encoder of deep copies": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3
    ),
    "containers": Held,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)),
    "copied whole": lambda: copy.deepcopy(PROTOTYPE),
    "loaded whole": lambda: loaded(PROTOTYPE),
}


def loaded(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    result: nn.Module = torch.load(file, weights_only=False)
    return result


@pytest.fixture
def strategy() -> OneCopy:
    return OneCopy()


@pytest.mark.parametrize("kind", MODELS)
def test_names_are_those_of_named_parameters(kind: str, strategy: OneCopy) -> None:
    with strategy.scope():
        model = MODELS[kind]()
    assert names_in(strategy) == [name for name, _ in model.named_parameters()]
    for hosted, parameter in zip(hosting_in(strategy).parameters, model.parameters(), strict=True):
        assert hosted.parameter is parameter
        assert torch.equal(hosted.variable.value(), parameter)


def test_hosting_begins_with_the_values_after_initialisation(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
        nn.init.constant_(model.weight, 7.0)
    (weight, _) = hosting_in(strategy).parameters
    assert torch.equal(weight.variable.value(), torch.full((2, 2), 7.0))


def test_a_tied_parameter_is_one_variable_with_two_owners(strategy: OneCopy) -> None:
    with strategy.scope():
        model = Tied()
    (adoption,) = hosting_in(strategy).adopted
    assert adoption.name == "encode.weight"
    assert adoption.owners == ((model.encode, "weight"), (model.decode, "weight"))


def test_people_recognise_a_parameter_by_its_module_path(strategy: OneCopy) -> None:
    with strategy.scope():
        kept = [Recommender(), nn.Linear(1, 1, bias=False)]
    paths = [adoption.module_path for adoption in hosting_in(strategy).adopted]
    assert paths[:2] == ["Recommender", "Recommender.users"]
    assert paths[-1] == "Linear"
    assert len(kept) == 2


def test_modules_of_equal_names_get_suffixes(strategy: OneCopy) -> None:
    with strategy.scope():
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    with strategy.scope():
        third = nn.Linear(2, 2, bias=False)
    assert names_in(strategy) == ["weight", "bias", "weight_1", "bias_1", "weight_2"]
    assert len({id(first), id(second), id(third)}) == 3


def test_a_scope_name_is_a_prefix(strategy: OneCopy) -> None:
    with strategy.scope("tower"):
        model = nn.Linear(2, 2)
    assert names_in(strategy) == ["tower/weight", "tower/bias"]
    assert model.weight.shape == (2, 2)


def test_dropped_modules_leave_no_trace(strategy: OneCopy) -> None:
    with strategy.scope():
        dropped = nn.Linear(2, 2)
        cycle: list[object] = [dropped]
        cycle.append(cycle)  # only the collector frees it
        del dropped, cycle
        kept = nn.Linear(3, 3)
    assert names_in(strategy) == ["weight", "bias"]
    hosted = next(iter(hosting_in(strategy).parameters))
    assert hosted.parameter is kept.weight


def test_modules_of_another_thread_are_not_adopted(strategy: OneCopy) -> None:
    elsewhere: list[nn.Module] = []

    def build() -> None:
        elsewhere.append(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
        elsewhere.append(copy.deepcopy(PROTOTYPE))

    with strategy.scope():
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
    assert len(elsewhere) == 2
    assert names_in(strategy) == []


def test_modules_built_outside_of_scopes_are_left_alone(strategy: OneCopy) -> None:
    with strategy.scope():
        pass
    before = nn.Module.__setstate__
    model = nn.Linear(2, 2)
    with strategy.scope():
        assert model.weight.shape == (2, 2)
    assert names_in(strategy) == []
    assert nn.Module.__setstate__ is before


def test_a_module_from_before_is_adopted_with_the_one_that_takes_it(
    strategy: OneCopy,
) -> None:
    body = nn.Linear(2, 2)
    with strategy.scope():
        model = nn.Sequential(body, nn.Linear(2, 1))
    assert names_in(strategy) == [name for name, _ in model.named_parameters()]


def test_nothing_is_adopted_when_the_scope_fails(strategy: OneCopy) -> None:
    kept = []
    with pytest.raises(ZeroDivisionError), strategy.scope():
        kept.append(nn.Linear(2, 2))
        raise ZeroDivisionError
    with strategy.scope():
        pass
    assert names_in(strategy) == []


def test_a_run_within_the_scope_adopts_what_is_built_so_far(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
        strategy.run(lambda: model(torch.ones(1, 2)))
        assert names_in(strategy) == ["weight", "bias"]
        wrapped = nn.Sequential(model, nn.Linear(2, 1))
    assert names_in(strategy) == ["weight", "bias", "1.weight", "1.bias"]
    assert wrapped[0] is model


def test_an_optimizer_within_the_scope_adopts_too(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
        stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters()))
        assert names_in(strategy) == ["weight", "bias"]


def test_a_frozen_parameter_is_hosted(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
        model.weight.requires_grad_(False)
    assert names_in(strategy) == ["weight", "bias"]
    assert not model.weight.requires_grad


def test_buffers_stay_with_the_process(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.BatchNorm1d(3)
    strategy.run(lambda: model(torch.randn(4, 3)))
    assert names_in(strategy) == ["weight", "bias"]
    assert model.num_batches_tracked == 1


def test_a_module_of_one_strategy_cannot_join_another(strategy: OneCopy) -> None:
    with strategy.scope():
        model = nn.Linear(2, 2)
    other = OneCopy()
    with (
        pytest.raises(stratagem.ContextError, match=r"Mixing different.*'0\.weight'"),
        other.scope(),
    ):
        joined = nn.Sequential(model)
    assert joined[0] is model


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_lazy_module_is_hosted_at_its_first_forward(replicas: int) -> None:
    strategy = OneCopy(replicas)
    with strategy.scope():
        lazy, eager = nn.LazyLinear(3), nn.Linear(3, 1)
        model = nn.Sequential(lazy, nn.ReLU(), eager)
        optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    assert names_in(strategy) == ["2.weight", "2.bias"]

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 5)).sum().backward()
        optimizer.step()

    strategy.run(step)
    assert sorted(names_in(strategy)) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert lazy.weight.shape == (3, 5)
    bias = next(h for h in hosting_in(strategy).parameters if h.name == "2.bias")
    before = eager.bias.detach().clone()
    strategy.run(lambda: None)
    assert torch.equal(eager.bias, bias.variable.value())
    assert torch.equal(eager.bias, before - 4.0)


def test_a_lazy_name_is_kept_from_others(strategy: OneCopy) -> None:
    with strategy.scope():
        lazy, eager = nn.LazyLinear(3), nn.Linear(2, 2)
    lazy(torch.ones(1, 2))
    assert sorted(names_in(strategy)) == ["bias", "bias_1", "weight", "weight_1"]
    assert hosting_in(strategy).adopted[0].parameter is eager.weight


def test_a_lazy_module_that_is_loaded_is_hosted_before_it_is_run(
    strategy: OneCopy,
) -> None:
    with strategy.scope():
        lazy = nn.LazyLinear(3)
    lazy.load_state_dict(nn.Linear(2, 3).state_dict())
    strategy.run(lambda: None)
    assert names_in(strategy) == ["weight", "bias"]


def test_a_copy_of_a_lazy_module_is_its_own(strategy: OneCopy) -> None:
    with strategy.scope():
        lazy = nn.LazyLinear(3)
    copied = loaded(copy.deepcopy(lazy))
    assert copied(torch.ones(1, 2)).shape == (1, 3)
    assert names_in(strategy) == []

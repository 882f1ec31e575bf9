"""Numbers that programs log, as servers and the dashboard have them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import stratagem
from stratagem._core.scalars import Scalars
from stratagem_deploy.dashboard.view import measures
from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, ask
from stratagem_proto.errors import InvalidArgumentError, InvalidTypeError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from tests.client.clusters import Cluster
from tests.conftest import TOKEN
from tests.waiting import eventually


def test_the_last_value_of_each_name_becomes_a_curve() -> None:
    # Heartbeats come three times in a lease.
    with ParameterServer(ServerSettings(token=TOKEN, lease_seconds=3)) as server:

        def asked() -> list[ServerAnswer]:
            return ask([ServerPlace(server.address)], TOKEN, 30.0)

        with Cluster([server.address], 1).strategy(0) as strategy:
            strategy.barrier("start")
            strategy.log({"loss": 3.0})
            strategy.log({"loss": torch.tensor([0.25]), "gone": math.nan})
            earlier = asked()

            def has_come() -> bool:
                return measures(asked(), earlier).get("scalar/loss") == {"worker:0": 0.25}

            eventually(has_come)
            # Curves have gaps where there is no number.
            assert "scalar/gone" not in measures(asked(), earlier)


def test_without_a_cluster_nobody_is_told() -> None:
    resolver = stratagem.cluster_resolver.SimpleClusterResolver(stratagem.ClusterSpec({}))
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        strategy.log({"loss": 1.0})


@pytest.mark.parametrize("name", ["", "x" * 101])
def test_a_name_has_a_bounded_length(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="1 to 100 characters"):
        Scalars().log({name: 1.0})


def test_the_number_of_names_is_bounded() -> None:
    scalars = Scalars()
    scalars.log({f"number {index}": index for index in range(32)})
    with pytest.raises(InvalidArgumentError, match="at most 32"):
        scalars.log({"one more": 1.0})
    assert len(scalars.latest()) == 32


@pytest.mark.parametrize("value", ["much", None, torch.ones(2), {}])
def test_what_is_no_number_is_refused_by_its_name(value: Any) -> None:
    scalars = Scalars()
    with pytest.raises(InvalidTypeError, match=r"'loss' is logged as .* which is no number"):
        scalars.log({"loss": value})
    assert not scalars.latest()

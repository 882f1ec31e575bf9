"""What strategies do to session configurations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import stratagem
from stratagem import ConfigProto
from tests.deprecations import warns_to_use

pytestmark = pytest.mark.usefixtures("four_cpus")

# Each strategy, and whether it isolates the state of its session.
STRATEGIES: list[tuple[Callable[[], stratagem.Strategy], bool]] = [
    (lambda: stratagem.MirroredStrategy(["CPU:0", "CPU:1"]), True),
    (lambda: stratagem.CentralStorageStrategy(["CPU:0", "CPU:1"]), True),
    (lambda: stratagem.OneDeviceStrategy("CPU:0"), False),
    (stratagem.get_strategy, False),
]


@pytest.mark.spec("CFG-1")
@pytest.mark.parametrize(("build", "isolates"), STRATEGIES)
def test_configure_changes_the_configuration_in_place(
    build: Callable[[], stratagem.Strategy], isolates: bool
) -> None:
    given = ConfigProto(device_filters=["/job:ps"])
    with warns_to_use("update_config_proto"):
        build().configure(given)
    assert given.isolate_session_state is isolates
    assert list(given.device_filters) == ["/job:ps"]


@pytest.mark.spec("CFG-1")
def test_configure_without_a_configuration_changes_nothing() -> None:
    strategy = stratagem.get_strategy()
    with warns_to_use("update_config_proto"):
        strategy.configure()
    with warns_to_use("update_config_proto"), pytest.raises(ValueError, match="made"):
        strategy.configure(cluster_spec={"worker": ["a:1"]}, task_type="worker")
    assert strategy.update_config_proto(ConfigProto()) == ConfigProto()

"""The strategy of TensorFlow 1.12 for accelerators: what it tells of its cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import stratagem
from stratagem import ClusterSpec, ConfigProto, PerReplica, Variable, config, contrib
from stratagem._tpu.cores import Topology
from stratagem.cluster_resolver import SimpleClusterResolver, TPUClusterResolver
from tests.client.batches import batches, shares
from tests.spec.towers.tpu_cores import HOST, SUM, on_cores

pytestmark = [
    pytest.mark.usefixtures("four_cpus"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CPU = "/job:localhost/replica:0/task:0/device:CPU:"


@pytest.fixture
def strategy() -> contrib.TPUStrategy:
    return on_cores()


@pytest.fixture
def in_scope(strategy: contrib.TPUStrategy) -> Iterator[None]:
    with strategy.scope():
        yield


@pytest.mark.spec("TPU-1")
def test_the_length_of_loops_is_kept(strategy: contrib.TPUStrategy) -> None:
    assert strategy.steps_per_run == 3
    with pytest.raises(ValueError, match="at least 1 step"):
        contrib.TPUStrategy(TPUClusterResolver("local"), 0)
    with pytest.raises(TypeError, match="must be a ClusterResolver"):
        contrib.TPUStrategy("local", 1)  # type: ignore[arg-type]


@pytest.mark.spec("TPU-2")
def test_all_cores_are_used_or_as_many_as_asked_for() -> None:
    assert on_cores(None).num_towers == 4
    assert on_cores(3).num_towers == 3
    nobody = SimpleClusterResolver(ClusterSpec({}))
    assert contrib.TPUStrategy(nobody, 1).num_towers == 4
    for num_cores in (0, 5):
        with pytest.raises(ValueError, match="at most as many"):
            on_cores(num_cores)


@pytest.mark.spec("TPU-3")
def test_this_process_is_a_host_with_all_its_cores(
    strategy: contrib.TPUStrategy,
) -> None:
    assert (strategy.num_hosts, strategy.num_towers_per_host) == (1, 4)


@pytest.mark.spec("TPU-4")
def test_cores_are_the_first_ones_by_name() -> None:
    config.set_logical_cpus(12)
    strategy = on_cores(3)
    assert strategy.worker_devices == [f"{CPU}0", f"{CPU}1", f"{CPU}10"]
    assert strategy.parameter_devices == strategy.worker_devices


@pytest.mark.spec("TPU-4")
def test_hosts_follow_each_other_by_name() -> None:
    cores = Topology.in_order("worker", range(11), ["GPU:1", "GPU:0"], 6)
    assert cores.devices == tuple(
        f"/job:worker/replica:0/task:{task}/device:GPU:{index}"
        for task in (0, 1, 10)
        for index in (0, 1)
    )
    assert cores.used_tasks == (0, 1, 10)
    assert Topology.in_order("worker", [0, 1], ["GPU:0", "GPU:1"], 1).used_tasks == (0,)
    with pytest.raises(ValueError, match="equally many"):
        Topology.in_order("worker", [0, 1], ["GPU:0", "GPU:1"], 3)


@pytest.mark.spec("TPU-5")
def test_there_is_a_single_tower_only_if_there_is_one_core() -> None:
    assert on_cores(1).is_single_tower
    assert not on_cores(2).is_single_tower


@pytest.mark.spec("TPU-6")
def test_the_index_of_the_only_core_is_0() -> None:
    strategy = on_cores(1)
    with strategy.scope():
        assert strategy.worker_device_index == 0
    strategy = on_cores(2)
    with strategy.scope():
        assert strategy.unwrap(strategy.worker_device_index) == [0, 1]


@pytest.mark.spec("TPU-10")
def test_there_is_nothing_to_initialize_in_this_process(
    strategy: contrib.TPUStrategy,
) -> None:
    assert strategy.initialize() is None
    assert strategy.finalize() is None


@pytest.mark.spec("TPU-16")
def test_what_belongs_to_no_variable_is_on_the_cpu(
    strategy: contrib.TPUStrategy, in_scope: None
) -> None:
    assert strategy.non_slot_devices([]) == [HOST]
    with strategy.colocate_vars_with(strategy.non_slot_devices([])):
        assert Variable(1.0).shape == ()


@pytest.mark.spec("TPU-21")
def test_the_rest_is_as_with_other_strategies() -> None:
    strategy = on_cores()
    assert isinstance(strategy, contrib.OneDeviceStrategy)
    values = [torch.tensor(1.0), torch.tensor(2.0)]
    with strategy.scope() as current:
        assert current is strategy is contrib.get_cross_tower_context()
        assert strategy.batch_reduce(SUM, [(values, HOST)]) == [3]
        assert strategy.group(PerReplica(values)) is None
        with strategy.colocate_vars_with(Variable(1.0)):
            assert len(Variable(2.0).values) == 2


@pytest.mark.spec("TPU-22")
def test_one_program_does_everything(strategy: contrib.TPUStrategy) -> None:
    assert not strategy.between_graph
    assert strategy.should_init
    assert strategy.should_checkpoint
    assert strategy.should_save_summary


@pytest.mark.spec("TPU-23")
def test_a_session_is_told_of_the_cluster(strategy: contrib.TPUStrategy) -> None:
    session = ConfigProto()
    strategy.configure(session)
    assert session == ConfigProto(isolate_session_state=True)
    with pytest.raises(ValueError, match="pass a ClusterResolver"):
        strategy.configure(session, {"worker": ["a:1"]}, "worker", 0)


@pytest.mark.spec("TPU-24")
def test_a_host_has_a_cpu(strategy: contrib.TPUStrategy) -> None:
    assert strategy.get_host_cpu_device(0) == HOST
    assert strategy.get_host_cpu_device(7) == HOST
    elsewhere = TPUClusterResolver("a.test:1,b.test:1", "tpu_worker")
    hosts = contrib.TPUStrategy(elsewhere, 1)
    assert hosts.get_host_cpu_device(1) == "/job:tpu_worker/task:1/device:CPU:0"


@pytest.mark.spec("TPU-25")
def test_the_later_spellings_are_there() -> None:
    strategy = stratagem.TPUStrategy(TPUClusterResolver("local"), 5, num_cores=2)
    extended = strategy.extended
    assert strategy.steps_per_run == extended.steps_per_run == 5
    assert (extended.num_hosts, extended.num_replicas_per_host) == (1, 4)
    assert extended.non_slot_devices([]) == (extended.get_host_cpu_device(0),)
    assert extended.experimental_require_static_shapes
    assert strategy.experimental_initialize() == strategy.experimental_finalize() == []
    iterator = strategy.make_dataset_iterator(batches(4, 2))
    assert shares(iterator.get_next()) == [[0], [1]]
    assert not hasattr(strategy, "map")


@pytest.mark.spec("VAR-8")
def test_a_variable_has_a_copy_on_each_core() -> None:
    with on_cores(3).scope():
        v = Variable(1.0, name="v")
    assert [copy.device_name for copy in v.values] == [f"{CPU}{i}" for i in range(3)]

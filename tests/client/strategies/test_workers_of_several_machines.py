"""Workers without servers, whose messages are not encrypted, on more than one machine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stratagem import ClusterSpec, MultiWorkerMirroredStrategy
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError


def trained_at(*addresses: str) -> MultiWorkerMirroredStrategy:
    """The strategy of the first of these workers, which connects to nobody yet."""
    spec = ClusterSpec({"worker": list(addresses)})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    return MultiWorkerMirroredStrategy(resolver)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("STRATAGEM_INSECURE", raising=False)
    return monkeypatch


@pytest.mark.parametrize("host", ["10.0.0.2", "host.of.a.cluster", "[2001:db8::1]"])
def test_they_are_refused_unless_the_network_is_trusted(
    said: pytest.MonkeyPatch, host: str
) -> None:
    addresses = f"{host}:2222", "10.0.0.3:2222"
    with pytest.raises(FailedPreconditionError, match=r"task:0 would .* STRATAGEM_INSECURE=true"):
        trained_at(*addresses)
    said.setenv("STRATAGEM_INSECURE", "true")
    assert trained_at(*addresses).num_replicas_in_sync == 2
    said.setenv("STRATAGEM_INSECURE", "maybe")
    with pytest.raises(InvalidArgumentError, match="STRATAGEM_INSECURE is 'maybe'"):
        trained_at(*addresses)


@pytest.mark.usefixtures("said")
def test_one_machine_and_one_worker_need_no_trust() -> None:
    assert trained_at("localhost:2222", "127.0.0.1:2223").num_replicas_in_sync == 2
    assert trained_at("10.0.0.2:2222").num_replicas_in_sync == 1


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "host.of.a.cluster", "MASTER_PORT": "1"}


@pytest.mark.parametrize(("more", "is_refused"), [({"LOCAL_WORLD_SIZE": "4"}, False), ({}, True)])
def test_torchrun_says_whether_there_is_one_machine(
    said: pytest.MonkeyPatch, more: Mapping[str, str], is_refused: bool
) -> None:
    for name, value in {**TORCHRUN, **more}.items():
        said.setenv(name, value)
    said.delenv("TF_CONFIG", raising=False)
    if is_refused:
        with pytest.raises(FailedPreconditionError, match="of other machines"):
            MultiWorkerMirroredStrategy()
    else:
        assert MultiWorkerMirroredStrategy().num_replicas_in_sync == 4

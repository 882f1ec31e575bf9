"""Views in Leases of Kubernetes."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from stratagem_proto.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiter import Arbiter
from stratagem_psserver.replication.registers import arbiter_of
from tests.psserver.replication.arbiters.lease_server import LeaseServer, serving
from tests.psserver.replication.arbiters.places import Kubernetes, arbiter_at, settings_of, view


@pytest.fixture
def arbiter(leases: LeaseServer) -> Iterator[Arbiter]:
    arbiter = arbiter_at(Kubernetes(leases))
    yield arbiter
    asyncio.run(arbiter.close())


def replaced(arbiter: Arbiter, present: View | None, following: View) -> bool:
    return asyncio.run(arbiter.replace(present, following))


def test_kubectl_shows_the_primary_and_the_epoch(leases: LeaseServer, arbiter: Arbiter) -> None:
    assert replaced(arbiter, None, view(1, 0))
    assert replaced(arbiter, view(1, 0), view(2, 1))
    lease = leases.leases["movies-ps-0"]
    assert lease["spec"] == {"holderIdentity": "ps-1:2222", "leaseTransitions": 2}
    assert '"epoch": "2"' in lease["metadata"]["annotations"]["stratagem/view"]
    assert replaced(arbiter, view(2, 1), View(epoch=3))
    assert leases.leases["movies-ps-0"]["spec"] == {"leaseTransitions": 3}


def test_what_others_have_noted_on_the_lease_stays(leases: LeaseServer, arbiter: Arbiter) -> None:
    assert replaced(arbiter, None, view(1))
    metadata = leases.leases["movies-ps-0"]["metadata"]
    metadata["annotations"]["owner"] = "me"
    metadata["labels"]["team"] = "ours"
    assert replaced(arbiter, view(1), view(2))
    metadata = leases.leases["movies-ps-0"]["metadata"]
    assert metadata["annotations"]["owner"] == "me"
    assert metadata["labels"] == {"team": "ours", "app.kubernetes.io/part-of": "stratagem"}


def test_a_change_between_reading_and_writing_is_a_conflict(
    leases: LeaseServer, arbiter: Arbiter
) -> None:
    assert replaced(arbiter, None, view(1))
    leases.rivals = 1
    assert not replaced(arbiter, view(1), view(2))
    assert asyncio.run(arbiter.read()) == view(1)
    assert replaced(arbiter, view(1), view(2))


@pytest.mark.parametrize("present", [None, view(1)])
def test_a_change_that_is_not_answered_is_not_repeated(
    present: View | None, leases: LeaseServer, arbiter: Arbiter
) -> None:
    if present is not None:
        assert replaced(arbiter, None, present)
    leases.methods.clear()
    leases.is_cutting = True
    following = view(2 if present else 1, 1)
    with pytest.raises(UnavailableError, match="See that the API server runs"):
        replaced(arbiter, present, following)
    assert leases.methods == ["GET", "PUT" if present else "POST"]
    assert asyncio.run(arbiter.read()) == following


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "401 .*its token is mounted"),
        (403, "403 .*verbs get, create and update for leases"),
        (429, "429 .*API server runs"),
        (500, "500 .*API server runs"),
        (503, "503 .*API server runs"),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int, advice: str, leases: LeaseServer, arbiter: Arbiter
) -> None:
    assert replaced(arbiter, None, view(1))
    leases.methods.clear()
    leases.refusal = status
    named = "the Lease 'movies-ps-0' in namespace 'training'"
    for call in (arbiter.read(), arbiter.replace(view(1), view(2))):
        with pytest.raises(UnavailableError, match=rf"{named}.* {advice}"):
            asyncio.run(call)
    assert leases.methods == ["GET", "GET"]


def test_a_namespace_that_is_not_there_is_named(leases: LeaseServer) -> None:
    arbiter = arbiter_of(settings_of("kubernetes:elsewhere/movies"))
    with pytest.raises(UnavailableError, match=r"'elsewhere'.* 404 .*that the namespace exists"):
        replaced(arbiter, None, view(1))
    asyncio.run(arbiter.close())


def test_an_api_server_that_is_away_is_named(leases: LeaseServer, arbiter: Arbiter) -> None:
    leases.shutdown()
    leases.server_close()
    with pytest.raises(UnavailableError, match=f"port={leases.server_port}|:{leases.server_port}"):
        asyncio.run(arbiter.read())


def test_a_lease_of_another_program_is_left_alone(leases: LeaseServer, arbiter: Arbiter) -> None:
    assert replaced(arbiter, None, view(1))
    leases.leases["movies-ps-0"]["metadata"]["annotations"] = {}
    for call in (arbiter.read(), arbiter.replace(None, view(1))):
        with pytest.raises(DataLossError, match=r"not a parameter server's. Give another NAME"):
            asyncio.run(call)


@pytest.mark.parametrize(
    "address", ["", "movies", "/movies", "training/", "Training/movies", "a/b/c", "a/" + "b" * 250]
)
def test_what_names_no_lease_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="give kubernetes:NAMESPACE/NAME"):
        arbiter_of(settings_of(f"kubernetes:{address}"))


def test_the_library_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(InvalidArgumentError, match=r"pip install 'stratagem\[kubernetes\]'"):
        arbiter_of(settings_of("kubernetes:training/movies"))


def test_a_configuration_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none")
    )
    with pytest.raises(FailedPreconditionError, match="automountServiceAccountToken"):
        arbiter_of(settings_of("kubernetes:training/movies"))


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Loaded late, since all that load tests would wait for it.
    from kubernetes.config import incluster_config

    authority = trustme.CA()
    security = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(security)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("secret")
    # Where every pod has these files is nowhere else.
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", tmp_path / "token")
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", tmp_path / "ca.crt")
    with serving("bearer secret", security) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        arbiter = arbiter_at(Kubernetes(server))
        assert replaced(arbiter, None, view(1))
        asyncio.run(arbiter.close())
    assert "movies-ps-0" in server.leases

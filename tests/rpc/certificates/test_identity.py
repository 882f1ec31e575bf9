"""Who a certificate says that a process is."""

from __future__ import annotations

import pytest

from stratagem_proto.errors import InvalidArgumentError
from stratagem_rpc.certificates.identity import CertifiedIdentity, server_name

CHIEF = CertifiedIdentity("prod", "chief", "worker", 1)


@pytest.mark.parametrize(
    ("identity", "uri"),
    [
        (CHIEF, "spiffe://prod/job/worker/task/1/role/chief"),
        (CertifiedIdentity("eu.prod-2", "observer"), "spiffe://eu.prod-2/role/observer"),
    ],
)
def test_an_id_names_cluster_task_and_role(identity: CertifiedIdentity, uri: str) -> None:
    assert identity.uri == uri
    assert CertifiedIdentity.from_uri(uri) == identity


def test_a_task_has_a_name_for_each_way_to_mean_it() -> None:
    assert CHIEF.names == ("1.worker.prod.stratagem", "worker.prod.stratagem", "any.prod.stratagem")
    assert server_name("prod", "PS", 0) == "0.ps.prod.stratagem"
    assert CertifiedIdentity("prod", "observer").names == ()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("spiffe://prod/job/worker/task/1", "spiffe://CLUSTER/job/JOB/task/N/role/ROLE"),
        ("https://prod/role/chief", "names no process"),
        ("spiffe://prod/job/worker/task/-1/role/chief", "names no process"),
        ("spiffe://prod/job/worker/task/1/role/king", "'king' is no role; give one of chief"),
        ("spiffe://Prod/role/chief", "'Prod' cannot be the name of a cluster"),
        ("spiffe://prod/job/w.x/task/1/role/worker", "'w.x' cannot be the name of a job"),
        ("spiffe:///role/chief", "cannot be the name of a cluster"),
        ("spiffe://prod/role/chief/", "names no process"),
    ],
)
def test_what_names_no_process_is_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        CertifiedIdentity.from_uri(uri)

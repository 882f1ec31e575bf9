"""Each task of the overlay with cert-manager shows a certificate of its own, and no other."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stratagem_rpc.certificates.folder import read_certificates
from tests.deploy.manifests.issuing import certificate_secrets
from tests.deploy.manifests.networks import reaches
from tests.deploy.manifests.pods import Pod, pods
from tests.deploy.manifests.rendering import Manifest
from tests.deploy.manifests.tasks import index, of_kind, programs, servers

OVERLAY = "overlays/tls"
FOLDER = "/run/secrets/tls"


def role(pod: Pod) -> str:
    return pod.labels["stratagem/role"]


def secret(pod: Pod) -> Any:
    """The secret that a pod finds its certificate in."""
    volume = pod.container.mounts[FOLDER]
    (found,) = (one["secret"] for one in pod.spec["volumes"] if one["name"] == volume)
    return found


def certificate(pod: Pod) -> Manifest:
    """The manifest of the certificate in the secret of a pod."""
    specs: list[Manifest] = [one["spec"] for one in of_kind(OVERLAY, "Certificate").values()]
    (found,) = (one for one in specs if one["secretName"] == secret(pod)["secretName"])
    return found


@pytest.mark.parametrize("pod", pods(OVERLAY), ids=lambda pod: pod.name)
def test_a_certificate_names_the_task_of_its_pod_and_its_role(pod: Pod, tmp_path: Path) -> None:
    found = secret(pod)
    for name, text in certificate_secrets(OVERLAY)[found["secretName"]].items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(found["defaultMode"])
    shown = read_certificates(tmp_path).identity
    assert (shown.cluster, shown.job, shown.task) == ("prod", pod.component, index(pod))
    assert shown.role == role(pod)
    assert (role(pod) == "chief") is ((pod.component, index(pod)) == ("worker", 0))


def test_each_pod_has_its_own_key_alone_and_none_that_of_the_authority() -> None:
    secrets = [
        [one["secret"]["secretName"] for one in pod.spec["volumes"] if "secret" in one]
        for pod in pods(OVERLAY)
    ]
    of_pods = [secret(pod)["secretName"] for pod in pods(OVERLAY)]
    assert len({*of_pods}) == len(of_pods) == 4
    for own, found in zip(of_pods, secrets, strict=True):
        assert sorted(found) == sorted(["token", own])
    authority = of_kind(OVERLAY, "Issuer")["authority"]["spec"]["ca"]["secretName"]
    assert all(authority not in found for found in secrets)
    (made,) = (
        one["spec"] for one in of_kind(OVERLAY, "Certificate").values() if one["spec"].get("isCA")
    )
    assert made["secretName"] == authority


def test_the_user_of_a_pod_reads_the_key_by_its_group_and_others_do_not() -> None:
    for pod in pods(OVERLAY):
        user = pod.spec["securityContext"]
        assert secret(pod)["defaultMode"] == 0o440
        assert user["runAsGroup"] == user["fsGroup"] == user["runAsUser"] != 0


def test_tasks_show_their_certificates_and_ask_for_those_of_others() -> None:
    for pod, given in servers(OVERLAY):
        assert str(given["tls"]) == FOLDER
        assert not given["insecure"], pod.name
    for pod in programs(OVERLAY):
        assert pod.environment["STRATAGEM_TLS"] == FOLDER


def test_certificates_are_renewed_long_before_they_end_with_other_keys() -> None:
    for pod in pods(OVERLAY):
        spec = certificate(pod)
        hours = [int(spec[name].removesuffix("h")) for name in ("duration", "renewBefore")]
        assert hours[1] * 3 <= hours[0]
        assert spec["privateKey"]["rotationPolicy"] == "Always"
        assert {"server auth", "client auth"} <= {*spec["usages"]}
        issuer = of_kind(OVERLAY, spec["issuerRef"]["kind"])
        assert spec["issuerRef"]["name"] in issuer


def test_each_role_reaches_what_it_calls_and_nothing_else() -> None:
    may = {
        (role(one), role(other))
        for one, other in product(pods(OVERLAY), repeat=2)
        for port in (2222, 2223, 2225)
        if reaches(OVERLAY, one, other, port)
    }
    assert may == {("chief", "server"), ("worker", "server")}
    assert of_kind(OVERLAY, "NetworkPolicy").keys() == {role(pod) for pod in pods(OVERLAY)}

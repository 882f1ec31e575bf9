"""Views in keys of etcd."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_psserver.replication.registers import arbiter_of
from tests.faults import Direction
from tests.psserver.replication.arbiters.etcd import Certificates, Etcd, free_port, running
from tests.psserver.replication.arbiters.places import PATIENCE, settings_of, view
from tests.relays import Relay


def test_a_member_that_is_away_is_passed_over(etcd: Etcd, tmp_path: Path) -> None:
    members = f"127.0.0.1:{free_port()},127.0.0.1:{etcd.port}"
    arbiter = arbiter_of(settings_of(f"etcd:{members}/{tmp_path.name}"), PATIENCE)
    assert asyncio.run(arbiter.replace(None, view(1)))
    assert asyncio.run(arbiter.read()) == view(1)
    asyncio.run(arbiter.close())


def test_members_that_are_all_away_are_named(etcd: Etcd) -> None:
    members = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    arbiter = arbiter_of(settings_of(f"etcd:{','.join(members)}/a"), PATIENCE)
    with pytest.raises(UnavailableError, match=f"{members[0]}: .*; {members[1]}: .* See that most"):
        asyncio.run(arbiter.replace(None, view(1)))
    asyncio.run(arbiter.close())


def test_a_change_that_is_not_answered_is_not_repeated_at_another_member(
    etcd: Etcd, tmp_path: Path
) -> None:
    with Relay(etcd.port) as relay:
        members = f"127.0.0.1:{relay.port},127.0.0.1:{etcd.port}"
        arbiter = arbiter_of(settings_of(f"etcd:{members}/{tmp_path.name}"), PATIENCE)
        assert asyncio.run(arbiter.read()) is None
        # The answer of the change passes in part, since that of the question is as long as here.
        relay.cut_after(Direction.TO_CLIENT, answer_bytes(etcd) + 20)
        with pytest.raises(UnavailableError, match="See that most members of etcd run"):
            asyncio.run(arbiter.replace(None, view(1)))
        assert relay.cuts == 1
        assert asyncio.run(arbiter.read()) == view(1)
        asyncio.run(arbiter.close())


def answer_bytes(etcd: Etcd) -> int:
    """The size of an answer that there is no key."""
    url = f"http://127.0.0.1:{etcd.port}/v3/kv/range"
    with urllib.request.urlopen(url, json.dumps({"key": "bm9uZQ=="}).encode()) as answer:
        head = sum(len(f"{name}: {value}\r\n") for name, value in answer.headers.items())
        return len("HTTP/1.1 200 OK\r\n\r\n") + head + len(answer.read())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    authority.cert_pem.write_to_path(files.authority)
    issued.cert_chain_pems[0].write_to_path(files.certificate)
    issued.private_key_pem.write_to_path(files.key)
    return files


@pytest.fixture(scope="module")
def closed_etcd(
    certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Etcd]:
    """One that answers only who shows a certificate."""
    with running(tmp_path_factory.mktemp("etcd"), certificates) as etcd:
        yield etcd


def test_the_variables_of_etcdctl_say_how_to_ask_by_tls(
    closed_etcd: Etcd, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"etcd:127.0.0.1:{closed_etcd.port}/closed"
    # Others use another authority.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.key))
    monkeypatch.setenv("ETCDCTL_CACERT", str(certificates.authority))
    stranger = arbiter_of(settings_of(name), PATIENCE)
    with pytest.raises(UnavailableError, match=r"key 'closed/ps-0' of etcd.* cannot be used"):
        asyncio.run(stranger.replace(None, view(1)))
    monkeypatch.setenv("ETCDCTL_CERT", str(certificates.certificate))
    monkeypatch.setenv("ETCDCTL_KEY", str(certificates.key))
    arbiter = arbiter_of(settings_of(name), PATIENCE)
    assert asyncio.run(arbiter.replace(None, view(1)))
    assert asyncio.run(arbiter.read()) == view(1)
    for each in (stranger, arbiter):
        asyncio.run(each.close())


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("ETCDCTL_CACERT", "/no/such/file", "ETCDCTL_CACERT names '/no/such/file', which is no"),
        ("ETCDCTL_CERT", os.devnull, "one of ETCDCTL_CERT and ETCDCTL_KEY is set"),
        ("ETCDCTL_KEY", os.devnull, "one of ETCDCTL_CERT and ETCDCTL_KEY is set"),
    ],
)
def test_certificates_that_are_not_there_are_named(
    variable: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("etcd3gw")
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidArgumentError, match=says):
        arbiter_of(settings_of("etcd:a:1/b"))


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "names '' as a member"),
        ("a/b", "names 'a' as a member"),
        ("a:1,b/c", "names 'b' as a member"),
        ("a:99999/c", "names 'a:99999' as a member"),
        ("a:1", "has no prefix"),
        ("a:1/", "has no prefix"),
    ],
)
def test_what_names_no_key_is_refused(address: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{says}.* give etcd:HOST:PORT"):
        arbiter_of(settings_of(f"etcd:{address}"))


def test_the_library_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "etcd3gw.client", None)
    with pytest.raises(InvalidArgumentError, match=r"pip install 'stratagem\[etcd\]'"):
        arbiter_of(settings_of("etcd:a:1/b"))

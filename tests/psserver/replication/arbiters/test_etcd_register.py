"""Views in keys of etcd."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path

import pytest

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_psserver.replication.arbiters.schemes import arbiter_of
from tests.faults import Direction
from tests.psserver.replication.arbiters.etcd import Etcd, free_port
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

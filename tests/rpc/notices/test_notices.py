"""Notices that a process is to end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem_proto.errors import InvalidArgumentError, UnavailableError
from stratagem_rpc.notices import Notice, notice_at, watched
from tests.rpc.notices.pods import PodServer, serving


def test_a_file_is_a_notice_once_it_is_there(tmp_path: Path) -> None:
    notice = notice_at(f"file:{tmp_path / 'notice'}")
    assert not notice.is_given()
    (tmp_path / "notice").touch()
    assert notice.is_given()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("file:", "needs its path"),
        ("a-file", "a notice is file:PATH or kubernetes:NAMESPACE/POD"),
        ("kubernetes:pod", "names no pod"),
        ("kubernetes:training/", "names no pod"),
    ],
)
def test_what_is_no_notice_is_refused(address: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        notice_at(address)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodServer]:
    with serving() as server:
        server.write_configuration(tmp_path / "config")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield server


def test_the_deletion_of_a_pod_is_a_notice(pod: PodServer) -> None:
    notice = notice_at("kubernetes:training/worker-0")
    assert not notice.is_given()
    pod.metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert notice.is_given()


def test_a_pod_that_is_gone_was_deleted(pod: PodServer) -> None:
    assert notice_at("kubernetes:training/worker-1").is_given()


@pytest.mark.parametrize("status", [403, 500])
def test_an_api_server_that_refuses_says_nothing_of_the_pod(pod: PodServer, status: int) -> None:
    pod.status = status
    with pytest.raises(UnavailableError, match="does not say whether the pod training/worker-0"):
        notice_at("kubernetes:training/worker-0").is_given()


class _Late(Notice):
    """Cannot be found out at first."""

    name = "something"

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def is_given(self) -> bool:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("nobody knows")
        return True


def test_a_watch_tells_once_and_outlasts_failures(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Semaphore(0)
    with watched(_Late(failures=2), told.release):
        assert told.acquire(timeout=20)
    assert not told.acquire(blocking=False)
    assert caplog.messages.count("nobody knows") == 1
    assert "something says that this process is to end" in caplog.messages


def test_without_a_notice_nothing_is_told() -> None:
    with watched(None, lambda: pytest.fail("told")):
        pass

"""Reader servers and those who ask them show certificates, and are known by these."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from stratagem import PermissionDeniedError, Reader, StratagemError
from stratagem_psserver.server import ParameterServer
from stratagem_psserver.settings import ServerSettings
from stratagem_reader.lookup_client import LookupClient, Wanted
from stratagem_reader.server import ReaderServer, ReaderServerSettings
from stratagem_reader.sources import source_at
from stratagem_rpc.certificates.presented import presenting
from tests.certified import certified
from tests.client.clusters import Cluster
from tests.reader.followed import ROWS, Training

_SECONDS = 60.0


def test_a_certificate_lets_nobody_be_what_it_does_not_say(tmp_path: Path) -> None:
    issued = certified(tmp_path / "certificates")
    ps, chief, worker, reader = map(
        issued.of, ("ps:0", "worker:0=chief", "worker:1", "serve:0=reader")
    )
    with ExitStack() as stack:
        server = stack.enter_context(ParameterServer(ServerSettings(tls=ps)))
        with presenting(chief):
            strategy = stack.enter_context(Cluster([server.address], 1).strategy(token=""))
            training = Training(strategy)
            training.train()
            version = strategy.publish()
        with presenting(reader):
            settings = ReaderServerSettings(tls=reader)
            served = stack.enter_context(ReaderServer(settings, source_at(server.address, "")))
            served.follower.wait_for(1, _SECONDS)
            other = stack.enter_context(Cluster([server.address], 1).strategy(token=""))
            with pytest.raises(PermissionDeniedError, match="with the certificate of"):
                Training(other)
        with presenting(worker):
            with pytest.raises(PermissionDeniedError, match="with the certificate of"):
                LookupClient(served.address, "", timeout=5.0).look_up([])
            with pytest.raises(PermissionDeniedError, match="with the certificate of"):
                Reader([server.address], token="", timeout=_SECONDS)
        with presenting(chief):
            assert strategy.publish() > version


def test_a_reader_follows_and_asks_by_its_certificate(tmp_path: Path) -> None:
    issued = certified(tmp_path / "certificates")
    ps, chief, reader, observer = map(
        issued.of, ("ps:0", "worker:0=chief", "serve:0=reader", "observer")
    )
    with ExitStack() as stack:
        server = stack.enter_context(ParameterServer(ServerSettings(tls=ps)))
        with presenting(chief):
            strategy = stack.enter_context(Cluster([server.address], 1).strategy(token=""))
            training = Training(strategy)
            training.train()
            strategy.publish()
        with presenting(reader):
            settings = ReaderServerSettings(tls=reader)
            served = stack.enter_context(ReaderServer(settings, source_at(server.address, "")))
            served.follower.wait_for(1, _SECONDS)
            rows = torch.arange(ROWS)
            expected = served.follower.lookup("fixed.weight", rows)
            for transport in ("auto", "tcp", "grpc"):
                client = LookupClient(served.address, "", transport=transport)
                stack.callback(client.close)
                assert torch.equal(client.look_up([Wanted("fixed.weight", rows)]).rows[0], expected)
            with Reader(f"serve://{served.address}", token="", timeout=_SECONDS) as asking:
                assert torch.equal(asking.lookup("fixed.weight", rows), expected)
        with presenting(observer), pytest.raises(PermissionDeniedError):
            LookupClient(served.address, "", timeout=5.0).look_up([])
        with pytest.raises(StratagemError):
            LookupClient(served.address, "", timeout=0.5).look_up([])

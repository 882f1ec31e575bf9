"""What a log has of functions that coordinators say have ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.closure_pb2 import EndClosuresRequest, EndClosuresResponse
from tests.psserver.persistence.servers import client_of, killed, logged

SERVICE = "stratagem_proto.v1.ClosureService"


def test_what_is_refused_about_ended_functions_is_in_no_log(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with logged(folder) as server, client_of(server) as client:
        client.create(w=torch.ones(3))
        before = client.everything()
        request = EndClosuresRequest(session_id=client.session_id, space=b"short", through=1)
        with pytest.raises(InvalidArgumentError, match="named by 16 bytes, not by 5"):
            client.unary("EndClosures", request, EndClosuresResponse, service=SERVICE)
        with logged(killed(folder)) as other, client_of(other, client) as again:
            assert again.everything() == before

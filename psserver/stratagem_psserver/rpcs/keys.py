"""Listing the keys of tables."""

from __future__ import annotations

from functools import partial

import torch

from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.key_pages import page_of


class KeyRpcs:
    """ListKeys."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def list(self, request: ListKeysRequest) -> ListKeysResponse:
        state = self._state
        state.session(request.session_id)
        # Whoever stores rows changes the keys in place.
        async with state.locked([request.table]):
            variables = state.variables(request.session_id, request.snapshot)
            keys = variables.get(request.table).keys()
            # Those that are larger, and which they are.
            with state.budget.reserve(2 * keys.nbytes, "listing keys"):
                paging = partial(_page, request, keys)
                return await state.compute.run(paging, keys.nbytes)


def _page(request: ListKeysRequest, keys: torch.Tensor) -> ListKeysResponse:
    after = request.after if request.HasField("after") else None
    page, more = page_of(keys, after, request.limit)
    return ListKeysResponse(keys=bytes(as_bytes(page)), more=more)

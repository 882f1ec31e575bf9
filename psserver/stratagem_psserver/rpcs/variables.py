"""The RPCs that create, describe, list and delete variables, and list the keys of tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from stratagem_proto.v1.keys_pb2 import ListKeysRequest, ListKeysResponse
from stratagem_proto.v1.variable_requests_pb2 import (
    CreateVariablesHeader,
    CreateVariablesResponse,
    DeleteVariablesRequest,
    DeleteVariablesResponse,
    DescribeVariablesRequest,
    DescribeVariablesResponse,
    ListVariablesRequest,
    ListVariablesResponse,
)
from stratagem_proto.wire.tensors import as_bytes
from stratagem_psserver.cluster import check_training
from stratagem_psserver.exactly_once.manifest import Manifest
from stratagem_psserver.exactly_once.receiving import Chunks, StagedTensors
from stratagem_psserver.exactly_once.session import Session
from stratagem_psserver.state import ServerState
from stratagem_psserver.tables.key_index import page_of
from stratagem_psserver.variables.creation import check_made, initial_values, sent_tensors
from stratagem_psserver.variables.joining import joined_with, separate
from stratagem_psserver.variables.locks import LockUse
from stratagem_psserver.variables.store import VariableStore


class VariableRpcs:
    """CreateVariables, DescribeVariables, ListVariables and DeleteVariables."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def create(
        self, header: CreateVariablesHeader, chunks: Chunks
    ) -> CreateVariablesResponse:
        check_training(header.training)
        sent = sent_tensors(header.variables)
        return await self._state.mutations.apply_once(
            header, Manifest(sent), chunks, partial(self._create, header), CreateVariablesResponse
        )

    async def _create(
        self, header: CreateVariablesHeader, staged: StagedTensors
    ) -> CreateVariablesResponse:
        state, specs = self._state, header.variables
        nbytes = check_made(specs)
        with state.budget.reserve(nbytes, "making initial values", staged.session.label):
            making = partial(initial_values, specs, staged.tensors)
            values = await state.compute.run(making, nbytes)
        # A slot must not appear while its owner is being stepped.
        names = [variable.slot_of or variable.name for variable in specs]
        async with state.locked(names, LockUse(staged.session.label, "creation")):
            created = state.store.create(specs, values)
            state.cluster.training = header.training or state.cluster.training
            return CreateVariablesResponse(variables=created)

    async def describe(self, request: DescribeVariablesRequest) -> DescribeVariablesResponse:
        self._state.session(request.session_id)
        described = self._state.store.describe(request.names)
        return DescribeVariablesResponse(variables=described)

    async def list(self, request: ListVariablesRequest) -> ListVariablesResponse:
        self._state.session(request.session_id)
        listed, training = self._state.store.listing(request.kinds), self._state.cluster.training
        return ListVariablesResponse(variables=listed, training=training)

    async def delete(self, request: DeleteVariablesRequest) -> DeleteVariablesResponse:
        return await self._state.mutations.once(
            request, partial(self._delete, request), DeleteVariablesResponse
        )

    async def _delete(
        self, request: DeleteVariablesRequest, session: Session
    ) -> DeleteVariablesResponse:
        state, names = self._state, list(request.names)
        use = LockUse(session.label, "deletion")
        async with state.locked_owners(partial(_touched, state.store, names), use):
            others = joined_with(state.store, names)
            deleted = state.store.delete(names)
            # Otherwise they would keep the joint memory that the deleted variables had a part of.
            separate(state.store, others)
            state.optimizers.forget(deleted)
            return DeleteVariablesResponse(names=deleted)


def _touched(store: VariableStore, names: Sequence[str]) -> list[str]:
    """Return the owners of variables to delete, and of those that share memory with them."""
    others = [each.name for each in joined_with(store, names)]
    return store.owners([*names, *others])


class KeyRpcs:
    """The RPC ListKeys."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def list(self, request: ListKeysRequest) -> ListKeysResponse:
        state = self._state
        session = state.session(request.session_id)
        # A request that stores rows changes the keys in place.
        async with state.locked([request.table], LockUse(session.label, "listing of keys")):
            variables = state.variables(session.id, request.snapshot)
            keys = variables.get(request.table).keys()
            # Paging selects the larger keys and makes a mask of them.
            with state.budget.reserve(2 * keys.nbytes, "listing keys", session.label):
                paging = partial(_page, request, keys)
                return await state.compute.run(paging, keys.nbytes)


def _page(request: ListKeysRequest, keys: torch.Tensor) -> ListKeysResponse:
    after = request.after if request.HasField("after") else None
    page, more = page_of(keys, after, request.limit)
    return ListKeysResponse(keys=bytes(as_bytes(page)), more=more)

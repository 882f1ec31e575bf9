"""Update functions that servers run as graph programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stratagem._core.contexts.context import cross_replica, get_strategy
from stratagem._core.variables.variable import Variable
from stratagem._parameter_server.hosting.store import RemoteStore
from stratagem._parameter_server.variables.variable import remote_of
from stratagem._ps_client.requests import updates
from stratagem._ps_client.requests.request import Request
from stratagem._ps_client.requests.variables import Attachments
from stratagem._tracing.recording import Source
from stratagem._tracing.trace import TracedUpdate, trace
from stratagem_proto.v1.update_program_pb2 import GraphInput, InputBinding


def run(
    store: RemoteStore,
    server: int,
    fn: Callable[..., Any],
    variables: Sequence[Variable],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Have a server run `fn(*variables, *args, **kwargs)`.

    Args:
        store: The variables on the servers.
        server: Which server.
        fn: The update function.
        variables: Its first arguments, which it has to write; without any, what it writes belongs
            to no one variable.
        args: Its further arguments.
        kwargs: Its keyword arguments.

    Returns:
        What it returned: a nest of variables, of tensors on the CPU, and of values of Python. A
        function that only reads runs here, and may return anything.

    Raises:
        UpdateFunctionError: It cannot be sent to a server.
    """

    def is_hosted(variable: Variable) -> bool:
        remote = remote_of(variable)
        return remote is not None and remote.place.server == server

    update = trace(fn, variables, args, kwargs, is_hosted)
    if update.trace.only_reads:
        # In cross-replica context, what it reads is as it is now on its server.
        with cross_replica(get_strategy()):
            return fn(*variables, *args, **kwargs)
    ran = store.servers.call(server, _request(store, update, non_slot=not variables))
    for variable in update.written:
        remote = remote_of(variable)
        if remote is not None:
            remote.outdate()
    return update.result(ran.outputs)


def _request(store: RemoteStore, update: TracedUpdate, non_slot: bool) -> Request[updates.GraphRun]:
    attachments = Attachments()
    bindings = [
        _binding(one.kind, source, attachments, store)
        for one, source in zip(update.program.inputs, update.bindings, strict=True)
    ]
    return updates.run(update.program, bindings, attachments, non_slot)


def _binding(
    kind: GraphInput.Kind.ValueType, source: Source, attachments: Attachments, store: RemoteStore
) -> InputBinding:
    match source:
        case Variable() if kind != GraphInput.KIND_TENSOR:
            return InputBinding(variable=source.name)
        case Variable():
            return InputBinding(tensor=attachments.add(_present_value(source, store)))
        case torch.Tensor():
            return InputBinding(tensor=attachments.add(source.detach()))
        case bool():
            return InputBinding(flag=source)
        case int():
            return InputBinding(integer=source)
        case float():
            return InputBinding(number=source)


def _present_value(variable: Variable, store: RemoteStore) -> torch.Tensor:
    remote = remote_of(variable)
    if remote is None:
        return variable.value().detach()
    # Not into the variable's own copy: a replica may be using that.
    return store.snapshot(remote)

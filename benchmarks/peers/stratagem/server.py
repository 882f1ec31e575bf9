"""A parameter server of a contestant, as a process, and requests below strategies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from benchmarks.peers.stratagem.clusters import cluster
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests import variables
from stratagem._ps_client.session import Identity
from stratagem_proto.programs.optimizers import rule_named, values_of
from stratagem_proto.programs.update_programs import encode_values
from stratagem_proto.v1.parameter_server_pb2 import UpdateHeader
from stratagem_proto.v1.session_pb2 import ROLE_CHIEF
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram, UpdateProgram
from stratagem_proto.v1.variable_pb2 import VARIABLE_KIND_MODEL, VariableSpec
from stratagem_proto.wire.tensors import spec_of


@contextmanager
def connected() -> Iterator[ServerGroup]:
    """One server and its only client, this process."""
    torch.set_num_threads(1)
    with cluster(ps=1, workers=1) as running:
        resolver = running.cluster_resolver
        address = resolver.cluster_spec().task_address("ps", 0)
        identity = Identity(ROLE_CHIEF, "chief", 0, resolver.cluster_token or "")
        servers = ServerGroup([address], identity)
        yield servers
        servers.close()


def created(servers: ServerGroup, values: Mapping[str, torch.Tensor]) -> None:
    """Creates variables with these values, by name, on each of the servers."""
    specs = [
        VariableSpec(name=name, tensor=spec_of(value), trainable=True, kind=VARIABLE_KIND_MODEL)
        for name, value in values.items()
    ]
    servers.on_all(lambda: variables.create(specs, [*values.values()]))


def program(optimizer: torch.optim.Optimizer) -> bytes:
    """What has a server step such an optimizer, with its first param group.

    It is encoded once, as strategies do.
    """
    name = type(optimizer).__name__
    group = encode_values(values_of(rule_named(name), optimizer.param_groups[0]))
    optimizer_program = OptimizerProgram(name=name, class_name=name, groups=[group])
    return UpdateHeader(program=UpdateProgram(optimizer=optimizer_program)).SerializeToString()

"""Decoders of what servers are asked to run, and of how clusters are described."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from google.protobuf.message import DecodeError

from stratagem_proto.configuration.tf_config import parse_tf_config
from stratagem_proto.programs.optimizers import OPTIMIZERS
from stratagem_proto.programs.update_programs import decode_group, decode_limits
from stratagem_proto.v1.update_program_pb2 import (
    GradientLimits,
    GraphInput,
    GraphProgram,
    HyperparameterGroup,
)
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_psserver.programs.graph_run import prepare
from stratagem_psserver.programs.graphs import Binding, compile_graph
from tests import graph_programs
from tests.fuzzing.target import MOST_BYTES, Target
from tests.graph_programs import Ref, node, program, read, tensor, written

_ADAM = OPTIMIZERS["Adam"]


def _graphs(data: bytes) -> None:
    """Compile a program, and run it on small tensors if it needs little memory."""
    try:
        message = GraphProgram.FromString(data)
    except DecodeError:
        return
    graph = compile_graph(message)
    bindings = [_bound(source) for source in graph.inputs]
    graph.check_bindings(bindings)
    prepared = prepare(graph, bindings)
    if prepared.nbytes <= MOST_BYTES:
        prepared.run()


def _bound(source: GraphInput) -> Binding:
    dtype = decode_dtype(source.dtype)
    if source.kind == GraphInput.KIND_NUMBER:
        return 2.0 if dtype.is_floating_point else 2
    return torch.arange(6).reshape(2, 3).to(dtype)


def _graph_seeds() -> Iterator[bytes]:
    yield program([written()], graph_programs.ADD_TO_INPUT).SerializeToString()
    nodes = (
        node("aten.mul.Tensor", Ref(1), 0.5),
        node("aten.sum.dim_IntList", Ref(2), [0], True),
        node("aten.add_.Tensor", Ref(0), Ref(3)),
        node("aten.index_select", Ref(0), 0, Ref(4)),
    )
    inputs = [written(), tensor(), read(torch.int64)]
    yield program(inputs, *nodes).SerializeToString()


def _hyperparameters(data: bytes) -> None:
    try:
        decode_group(_ADAM, HyperparameterGroup.FromString(data))
        decode_limits(GradientLimits.FromString(data))
    except DecodeError:
        pass


def _hyperparameter_seeds() -> Iterator[bytes]:
    group = HyperparameterGroup()
    group.values["lr"].number = 0.1
    group.values["betas"].numbers.values.extend([0.9, 0.99])
    group.values["amsgrad"].flag = True
    yield group.SerializeToString()
    yield GradientLimits(clip_norm=1.0).SerializeToString()


def _tf_config(data: bytes) -> None:
    parse_tf_config(data.decode(errors="replace"))


def _tf_config_seeds() -> Iterator[bytes]:
    cluster = {"ps": ["a.example:1"], "worker": {"3": "b.example:2"}}
    task = {"type": "worker", "index": 3}
    yield json.dumps({"cluster": cluster, "task": task, "rpc_layer": "grpc"}).encode()
    yield json.dumps({"cluster": cluster, "task": {"type": "ps", "index": "0"}}).encode()
    yield b"[" * 3000
    yield b'{"task": {"index": ' + b"1" * 3000 + b"}}"


TARGETS: Mapping[str, Target] = {
    "graphs": Target(_graphs, _graph_seeds),
    "hyperparameters": Target(_hyperparameters, _hyperparameter_seeds),
    "tf-config": Target(_tf_config, _tf_config_seeds),
}

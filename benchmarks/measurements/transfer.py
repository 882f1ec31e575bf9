"""Pushing gradients to a server and pulling values from it, and very small updates.

A push ends when the server has stepped SGD over the whole variable.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign

SIZES = (1_000_000, 10_000_000, 100_000_000)
SMALL = 100

_LIMITS = (
    Contestant("memcpy", "limits.memory"),
    Contestant("shared memory", "limits.shared_memory"),
    Contestant("TCP socket", "limits.socket", ["tcp"]),
    Contestant("Unix socket", "limits.socket", ["unix"]),
    Contestant("gRPC unary", "limits.grpc_echo", ["unary"]),
    Contestant("gRPC stream", "limits.grpc_echo", ["stream"]),
)
_TRANSPORTS = {"TCP": "tcp", "gRPC": "grpc", "Unix": "unix"}
_OURS = (
    Contestant("Stratagem", "stratagem.transfer"),
    *(
        Contestant(
            f"Stratagem {name}", "stratagem.transfer", settings={"STRATAGEM_TRANSPORT": transport}
        )
        for name, transport in _TRANSPORTS.items()
    ),
)


def _torch_rpc(name: str, kind: str) -> Contestant:
    return Contestant(name, "torch_rpc.transfer", [kind], peer=Foreign.TORCH_RPC, restless=True)


_PEERS = (
    Contestant("TensorFlow", "tensorflow.transfer", peer=Foreign.TENSORFLOW),
    _torch_rpc("torch RPC", "update"),
    Contestant("Ray", "ray.transfer", peer=Foreign.RAY),
)
# Its pushes have no end that can be waited for.
_MXNET = Contestant("MXNet", "mxnet.transfer", peer=Foreign.MXNET)
# What a call takes without an update behind it.
_PLAIN = _torch_rpc("torch RPC plain", "plain")


def transfer(sizes: Sequence[int] = SIZES, seconds: float = 0.1) -> Contest:
    """Large variables, in the sizes given in bytes."""
    either = {each.name for each in (*_OURS, *_LIMITS, *_PEERS)}
    both = {"Stratagem", "MXNet"}
    questions = [
        Question(f"{kind} {nbytes / 1e6:g} MB", f"{asked} {nbytes}", of, seconds)
        for nbytes in sizes
        for kind, asked, of in (
            ("push + SGD", "push", either),
            ("pull", "pull", either),
            ("push + SGD + pull", "both", both),
        )
    ]
    return Contest("transfer", (*_OURS, *_PEERS, _MXNET, *_LIMITS), questions)


_SMALL_SECONDS = 0.2


def small_updates() -> Contest:
    """Updates of a variable of 100 bytes."""
    contestants = (*_OURS, *_PEERS, _PLAIN, *_LIMITS[2:])
    names = {each.name for each in contestants}
    questions = [
        Question("round trip, median", f"push {SMALL}", names, _SMALL_SECONDS),
        Question("round trip, 99th percentile", f"tail {SMALL}", names, _SMALL_SECONDS),
    ]
    return Contest("small-updates", contestants, questions)

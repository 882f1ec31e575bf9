"""The server's side of a handshake, in which both ends prove that they know the secret.

The server keeps nothing for a challenge: it recognises its own by a key that the process has drawn,
and by the time in it. It keeps the challenges for which a right proof came until they are too old,
so that no proof is taken twice. Only who knows the secret makes it keep anything.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property

import grpc

from stratagem_proto.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    StratagemError,
    UnauthenticatedError,
    UnavailableError,
)
from stratagem_proto.proofs import NONCE_BYTES, proof_of_client, proof_of_server
from stratagem_proto.protocol import agreed_version
from stratagem_proto.v1.handshake_pb2 import DESCRIPTOR, ChallengeRequest, ChallengeResponse
from stratagem_proto.v1.session_pb2 import OpenSessionRequest, Task
from stratagem_rpc.serving.callers import (
    present_address,
    require_certified_handshake,
    require_socket_of,
)
from stratagem_rpc.serving.rpc_boundary import RpcBoundary, handler_of, unary_method
from stratagem_rpc.serving.settings import ServingSettings

# Somebody may have mixed up a file, or a program may try once more.
_FREE = 3

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 2.0

# An address that has sent no wrong proof for this time begins anew.
_MEMORY_SECONDS = 60.0

_MOST_ADDRESSES = 4096
_MOST_WAITING = 64


@dataclass
class _Record:
    count: int = 0
    last: float = 0.0
    waiting: int = 0


class FailedProofs:
    """The wrong proofs of each address, of those that have sent one last.

    All proofs of such an address wait, right ones too: whoever could tell by the time of the answer
    would not have to wait for it. They wait side by side and not for each other, and none is looked
    at later than `_LONGEST_SECONDS` after it came: so a client is never kept out by others behind
    the same address, unless these keep all places taken. An address that is "" is not known, and
    waits never.
    """

    def __init__(self) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def note_failure(self, address: str, now: float) -> None:
        """Note a wrong proof."""
        if not address:
            return
        record = self._known(address, now) or _Record()
        record.count, record.last = record.count + 1, now
        self._records[address] = record
        self._records.move_to_end(address)
        while len(self._records) > _MOST_ADDRESSES:
            self._records.popitem(last=False)

    def begin(self, address: str, now: float) -> float:
        """Return how long a proof of an address waits before it is looked at; `end` follows.

        Raises:
            ResourceExhaustedError: Many of that address wait already.
        """
        record = self._known(address, now)
        if record is None or record.count < _FREE:
            return 0.0
        if record.waiting >= _MOST_WAITING:
            error = ResourceExhaustedError(
                f"{_MOST_WAITING} proofs from {address} wait to be looked at, since "
                f"{record.count} were wrong; come again later"
            )
            error.retry_seconds = _FIRST_SECONDS
            raise error
        record.waiting += 1
        return min(_FIRST_SECONDS * 2.0 ** min(record.count - _FREE, 10), _LONGEST_SECONDS)

    def end(self, address: str) -> None:
        """Note that a proof waits no more."""
        if record := self._records.get(address):
            record.waiting = max(record.waiting - 1, 0)

    def _known(self, address: str, now: float) -> _Record | None:
        record = self._records.get(address)
        return record if record and now - record.last < _MEMORY_SECONDS else None


_SERVICE = DESCRIPTOR.services_by_name["HandshakeService"]

# A client answers at once, unless its machine or the network is very busy.
_SECONDS = 30.0

# Each took a right proof within the last `_SECONDS`.
_MOST_TAKEN = 65_536

_TIME = struct.Struct(">d")
_RANDOM_BYTES = 16
_BODY_BYTES = _TIME.size + _RANDOM_BYTES

_REMEDY = (
    "give client and server the same file, by STRATAGEM_TOKEN_FILE or --token-file, or the same "
    "token="
)


class Handshakes:
    """Makes the challenges of one server process, and checks what answers them.

    Args:
        settings: The settings of the server.
        clock: Returns the time in seconds; it never goes back.
        random_bytes: Returns as many random bytes as it is asked for.
        sleep: Waits for some seconds of the clock.

    Attributes:
        settings: The settings of the server.
    """

    def __init__(
        self,
        settings: ServingSettings,
        clock: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = os.urandom,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.settings = settings
        self._clock, self._random_bytes, self._sleep = clock, random_bytes, sleep
        self._failed = FailedProofs()
        # When each was made, in the order in which their proofs came.
        self._taken: dict[bytes, float] = {}

    @cached_property
    def _key(self) -> bytes:
        """What challenges are sealed with; drawn by the process that makes the first one."""
        return self._random_bytes(32)

    def challenge(self, request: ChallengeRequest, incarnation: bytes) -> ChallengeResponse:
        """Return a new challenge, and prove that the server knows the secret.

        Raises:
            ProtocolVersionError: The client speaks another version of the contract.
            InvalidArgumentError: Its nonce is not one.
        """
        agreed_version(request)
        if len(request.nonce) != NONCE_BYTES:
            raise InvalidArgumentError(f"a nonce of {len(request.nonce)} bytes, not {NONCE_BYTES}")
        body = _TIME.pack(self._clock()) + self._random_bytes(_RANDOM_BYTES)
        task = Task(job=self.settings.job, index=self.settings.task)
        answer = ChallengeResponse(
            task=task, incarnation=incarnation, challenge=body + self._seal(body)
        )
        if self.settings.token:
            answer.proof = proof_of_server(self.settings.token, request.nonce, answer)
        return answer

    def _seal(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, "sha256")

    async def check(self, asking: OpenSessionRequest, method: str) -> None:
        """Check that whoever asks speaks a known version, and knows the secret of the cluster.

        Args:
            asking: What is asked with.
            method: The name of the RPC without its service.

        Raises:
            ProtocolVersionError: Its version is not known.
            UnauthenticatedError: It has not proved that it knows the secret, or its certificate
                counts no more.
            PermissionDeniedError: Its certificate is that of somebody else, or it asks for another
                session than that of its socket.
            UnavailableError: The challenge is too old, or of another process.
            ResourceExhaustedError: Too many have proved themselves lately, or wait to do so.
        """
        agreed_version(asking)
        require_certified_handshake(asking, method, self.settings)
        if asking.session_id:
            require_socket_of(asking.session_id, self.settings)
        token, proof = self.settings.token, asking.proof
        if bool(token) != asking.HasField("proof"):
            raise self._unproved(bool(token))
        if not token:
            return
        made = self._time_of(proof.challenge)
        address = present_address()
        await self._wait(address)
        if not hmac.compare_digest(proof.mac, proof_of_client(token, method, asking)):
            self._failed.note_failure(address, self._clock())
            raise self._refused("was shown a wrong proof of the cluster token")
        self._take(proof.challenge, made)

    async def _wait(self, address: str) -> None:
        """Let a proof wait whose address has sent wrong ones, so that few can be tried."""
        seconds = self._failed.begin(address, self._clock())
        if seconds:
            try:
                await self._sleep(seconds)
            finally:
                self._failed.end(address)

    def _time_of(self, challenge: bytes) -> float:
        """Return when a challenge was made; raise unless it was made here, and lately."""
        body, seal = challenge[:_BODY_BYTES], challenge[_BODY_BYTES:]
        if len(body) == _BODY_BYTES and hmac.compare_digest(seal, self._seal(body)):
            (made,) = _TIME.unpack_from(body)
            if self._clock() - made <= _SECONDS:
                return float(made)
        raise UnavailableError(
            f"{self.settings.label} was shown a proof for a challenge that this process has not "
            f"made in the last {_SECONDS:g} s; ask for another one"
        )

    def _take(self, challenge: bytes, made: float) -> None:
        if challenge in self._taken:
            raise self._refused("was shown a proof a second time")
        oldest = self._clock() - _SECONDS
        while self._taken and next(iter(self._taken.values())) < oldest:
            del self._taken[next(iter(self._taken))]
        if len(self._taken) >= _MOST_TAKEN:
            error = ResourceExhaustedError(
                f"{self.settings.label} had {_MOST_TAKEN} handshakes in {_SECONDS:g} s, which is "
                "the most; come again later"
            )
            error.retry_seconds = 1.0
            raise error
        self._taken[challenge] = made

    def _unproved(self, has_token: bool) -> StratagemError:
        if has_token:
            return self._refused("was shown no proof of a cluster token")
        return self._refused("was started without a cluster token, which the client has")

    def _refused(self, why: str) -> StratagemError:
        return UnauthenticatedError(f"{self.settings.label} {why}; {_REMEDY}")


def challenge_handler(
    handshakes: Handshakes, incarnation: Callable[[], bytes], boundary: RpcBoundary
) -> grpc.GenericRpcHandler:
    """Return the handler of calls that ask for a challenge.

    Args:
        handshakes: Those of the server.
        incarnation: Returns the present run of the server.
        boundary: Where calls are counted and errors become statuses.
    """

    async def answer(request: ChallengeRequest) -> ChallengeResponse:
        return handshakes.challenge(request, incarnation())

    return handler_of(boundary, _SERVICE, {"Challenge": unary_method(ChallengeRequest, answer)})

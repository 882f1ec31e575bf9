"""The account that a server keeps of which function reads which batch of data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stratagem._coordinator.accounts.completion_reporter import CompletionReporter
from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.coordination import DataPass, draw_batch, open_pass
from stratagem_proto.v1.draws_pb2 import EarlierCoordinator, OpenPassResponse
from stratagem_proto.v1.session_pb2 import ClosureIdentity

_LOG = logging.getLogger("stratagem")


@dataclass(frozen=True)
class OpenedPass:
    """A pass that functions are to read.

    Attributes:
        data: Which.
        remaining: How many batches they have to draw.
        inherited: Functions of a coordinator that was lost which have drawn from it and not ended.
            They are to run again.
    """

    data: DataPass
    remaining: int
    inherited: Sequence[ClosureIdentity]


@dataclass(frozen=True)
class DataAccount:
    """The account of some data, as a coordinator uses it.

    Attributes:
        strategy: Whose servers.
        reporter: Tells them which functions have ended.
        name: Its name.
    """

    strategy: ParameterServerStrategy
    reporter: CompletionReporter
    name: str

    def open(self, num_batches: int, seed: int) -> OpenedPass:
        """Begin a pass, or go on with the last one if its coordinator was lost.

        Args:
            num_batches: How many batches a pass has.
            seed: By which all passes are shuffled, if this is the first one.

        Raises:
            FailedPreconditionError: The data had another number of batches.
            StratagemError: A server cannot be reached.
        """
        request = open_pass(self.name, num_batches, seed, self.reporter.space)
        keeper = BatchKeeper.of(self.strategy)
        opened = keeper.servers.call(keeper.server, request)
        unfinished = [one for each in opened.earlier for one in self._taken_over(each)]
        if opened.earlier:
            self._report(opened, num_batches)
        return OpenedPass(
            DataPass(self.name, opened.number, opened.seed),
            num_batches - opened.drawn + sum(batches for _, batches in unfinished),
            [identity for identity, batches in unfinished if batches],
        )

    def _taken_over(self, earlier: EarlierCoordinator) -> Iterator[tuple[ClosureIdentity, int]]:
        """Yield the unfinished functions, with how many batches they have drawn."""
        space, batches = earlier.space, {}
        for one in earlier.unfinished:
            batches[one.number] = one.batches
        for number in sorted(self.reporter.inherit(space, batches.keys())):
            yield ClosureIdentity(space=space, number=number), batches[number]

    def _report(self, opened: OpenPassResponse, num_batches: int) -> None:
        _LOG.warning(
            "continues pass %d of %r, of which %d of %d batches have been handed out "
            "before; programs that read it until now can read nothing more of it",
            opened.number,
            self.name,
            opened.drawn,
            num_batches,
        )


@dataclass(frozen=True)
class BatchKeeper:
    """The server that keeps the accounts of all data.

    Attributes:
        servers: All servers.
        server: Its index.
    """

    servers: ServerGroup
    server: int

    @classmethod
    def of(cls, strategy: ParameterServerStrategy) -> BatchKeeper:
        """Return that of a strategy, here or on a worker."""
        extended = strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        servers = extended._store.servers
        return cls(servers, servers.used[0])

    def draw(self, data: DataPass, num_batches: int) -> int | None:
        """Return the number of the batch that the running function is to read.

        Returns:
            None if none is left.

        Raises:
            FailedPreconditionError: The data had another number of batches, or another coordinator
                goes on with the pass.
        """
        return self.servers.call(self.server, draw_batch(data, num_batches))

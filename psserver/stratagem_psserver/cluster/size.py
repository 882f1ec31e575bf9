"""Over how many servers the variables are placed of which this server has a part."""

from __future__ import annotations

from stratagem_proto.errors import FailedPreconditionError


class ClusterSize:
    """The number of tasks of the job ps, as the chief or a checkpoint has said.

    A program that places variables over another number looks for some of them where they are not,
    and would create them anew beside values that others have kept.

    Attributes:
        known: The number; 0 before anybody has said it.
    """

    def __init__(self, server: str) -> None:
        """Know no number; `server` is the name of this one."""
        self._server = server
        self.known = 0

    def learn(self, told: int) -> None:
        """Take a number for the one, unless it is 0."""
        self.known = told or self.known

    def require(self, told: int, client: str) -> None:
        """Check the number that a client says, while this server has variables.

        Args:
            told: The number; 0 if the client places no variables.
            client: The name of the client.

        Raises:
            FailedPreconditionError: It is another one.
        """
        if told and self.known not in (0, told):
            raise FailedPreconditionError(
                f"{self._server} has its part of variables that are placed over {self.known} "
                f"parameter servers, and the cluster of {client} has {told}. Give the "
                f"program all {self.known}, or start all servers anew, with an empty "
                "--durability-folder and without --restore, and let it restore its checkpoint by "
                "strategy.restore(), which takes any number of servers",
                task=self._server,
            )

"""How one worker-server process is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratagem._for_workers import AnyCode, LoadableCode, NamedCode
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.memory import half_of_memory
from stratagem_rpc.serving.settings import ServingSettings


@dataclass(frozen=True)
class WorkerSettings(ServingSettings):
    """Settings of a worker server.

    Attributes:
        result_bytes: Most bytes of results that stay on the worker for others; more are sent to the
            program whose functions returned them.
        importable_only: Modules and packages whose functions are run, and no others; none to run
            any function, and load code that travels.

    Raises:
        InvalidArgumentError: Also where there is no token: whoever can connect can run what they
            like.
    """

    job: str = "worker"
    lease_seconds: float = 10.0
    result_bytes: int = field(default_factory=half_of_memory)
    importable_only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.token:
            raise InvalidArgumentError(
                f"{self.label} has no cluster token, and a worker runs whatever its "
                "clients send; give --token-file or set STRATAGEM_TOKEN_FILE to a file "
                "with a secret, or pass the secret itself as token="
            )

    def code(self) -> LoadableCode:
        """Return what of functions and classes is loaded."""
        return NamedCode(self.importable_only) if self.importable_only else AnyCode()

"""What a worker-server process can be told from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.serving.options import Job, ServingOptions

if TYPE_CHECKING:
    from stratagem_worker.settings import WorkerSettings


class WorkerOptions(ServingOptions):
    """Settings of `stratagem worker`."""

    kind: ClassVar[str] = "worker"

    job: Job = Field("worker", description="Job name of this task.")
    lease_seconds: float = Field(
        10.0, ge=0.1, description="Seconds of silence after which a client is considered dead."
    )
    result_bytes: int | None = Field(
        None,
        ge=0,
        description="Most bytes of large results that stay on this worker; by default "
        "half of the memory.",
    )
    logical_cpus: int = Field(
        1, ge=1, description="Number of logical CPUs; without GPUs a replica can run on each."
    )

    importable_only: str | None = Field(
        None,
        description="Run only functions of these modules and packages, separated by commas, and "
        "load no code that travels.",
    )

    def settings(self) -> WorkerSettings:
        """Return the settings of a server."""
        # It loads PyTorch, for which --help does not wait.
        from stratagem_worker.settings import WorkerSettings

        given = self.serving()
        del given["logical_cpus"]
        given["importable_only"] = self._modules()
        if self.result_bytes is None:
            del given["result_bytes"]
        return WorkerSettings(**given)

    def _modules(self) -> tuple[str, ...]:
        """Return those whose functions are run; none for any.

        Raises:
            InvalidArgumentError: Modules were to be named, and none is.
        """
        if self.importable_only is None:
            return ()
        named = tuple(filter(None, map(str.strip, self.importable_only.split(","))))
        if not named:
            raise InvalidArgumentError(
                f"--importable-only {self.importable_only!r} names no module, and without one a "
                "worker runs any code; name some modules, or leave it out, also in the environment"
            )
        return named

"""The command line of one worker server."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import typer
from pydantic import Field

from stratagem_proto.configuration.commands import command
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.memory import loading
from stratagem_rpc.serving import command_line
from stratagem_rpc.serving.command_line import Job, ServingOptions
from stratagem_rpc.serving.settings import be_insecure

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


app = typer.Typer(add_completion=False)


def serve(options: WorkerOptions, as_json: command_line.AsJson = False) -> None:
    """Run the functions that a coordinator sends. The worker needs the cluster's secret.

    Where several sources give a setting, the first of these counts: its flag, its environment
    variable, the task in TF_CONFIG, the table worker of the configuration file.

    After SIGTERM or Ctrl-C the worker lets the function that runs end, for at most --drain-seconds.

    Exit code: 0 after SIGTERM or Ctrl-C, and 2 if the worker could not start because of a setting
    or an address.
    """
    # These load PyTorch, for which --help and a shell that completes options do not wait.
    with loading():
        from stratagem import config
        from stratagem_worker.server import WorkerServer

    config.set_logical_cpus(options.logical_cpus)
    if options.insecure:
        # For the workers of a strategy without servers, which functions make.
        be_insecure()
    server = WorkerServer(options.settings())
    command_line.serve(server, options, as_json)


app.command()(command("worker", WorkerOptions, serve))


def main() -> None:
    app()

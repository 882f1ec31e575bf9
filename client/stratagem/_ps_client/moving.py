"""Moving the tasks of parameter servers to others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from stratagem._ps_client.session import Identity
from stratagem._ps_client.survey import (
    Effort,
    ServerCalls,
    ServerTasks,
    Survey,
    TaskLoad,
    TaskMove,
    balanced,
    drained,
    effort_of,
    surveyed,
    weights_of,
)
from stratagem_proto.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    StratagemError,
)
from stratagem_proto.v1.servers_pb2 import DescribeServerResponse, ServedTask

_LOG = logging.getLogger("stratagem")

# For so long clients are waited for that have not asked for a task where it is now.
_FOLLOWING_SECONDS = 10.0
_POLL_SECONDS = 0.1


class Servers:
    """The servers of the job ps, between which tasks can move while programs use them.

        strategy.servers.drain(1)

    A server is a process, and begins with the task of its number; a task is all variables that a
    cluster keeps in one place, with all that belongs to them. Servers can move their tasks if they
    have the same `--arbiter` and one replica each.
    """

    __module__ = "stratagem"

    def __init__(self, addresses: Callable[[], Iterable[str]], identity: Identity) -> None:
        """Ask nothing yet.

        Args:
            addresses: Returns where some servers are, or were, each as "host:port".
            identity: Who asks.
        """
        self._addresses, self._calls = addresses, ServerCalls(identity)
        self._added: list[str] = []

    def report(self, seconds: float = 1.0) -> Sequence[ServerTasks]:
        """Return all servers with their tasks, by their numbers, also those that do not answer.

        Args:
            seconds: For how long calls are counted.

        Raises:
            FailedPreconditionError: The servers keep their tasks.
            UnavailableError: No server can be reached.
        """
        survey = surveyed(self._calls, self._known)
        loads = self._measured(survey, seconds)
        if survey.views.keys() - loads.keys():
            # A task may have moved between two answers.
            survey = surveyed(self._calls, self._known)
            loads = self._measured(survey, seconds)
        unserved: dict[int, list[int]] = {}
        addresses = {**survey.addresses}
        for task in sorted(survey.views.keys() - loads.keys()):
            server = survey.views[task].primary
            unserved.setdefault(server.index, []).append(task)
            addresses.setdefault(server.index, server.address)
        found = []
        for number, address in sorted(addresses.items()):
            told = survey.servers.get(number, DescribeServerResponse())
            tasks = [loads[each.task] for each in told.tasks if each.task in loads]
            lacking = tuple(unserved.get(number, ()))
            found.append(ServerTasks(number, address, told.is_draining, tuple(tasks), lacking))
        return found

    def drain(
        self, server: int | str, timeout: float = 300.0, bytes_per_second: float | None = None
    ) -> Sequence[TaskMove]:
        """Move all tasks of a server to the others; afterwards it may be stopped.

        It takes no tasks any more. If a task cannot move, it stays, those that have moved stay
        where they are, and the server may be given tasks again.

        Args:
            server: Its number, or its address.
            timeout: The longest time for a task to move, in seconds.
            bytes_per_second: The most bytes of values that a server sends in a second, and that
                another one then loads, so that training has processors and network left; by
                default as many as possible.

        Returns:
            What has moved.

        Raises:
            InvalidArgumentError: Nothing could move at `bytes_per_second`.
            NotFoundError: There is no such server.
            FailedPreconditionError: It is the last one, or a task is about to move.
            UnavailableError: A server that serves tasks does not answer.
            DeadlineExceededError: A task has not moved in time.
            PermissionDeniedError: This is the program of a worker or an evaluator.
        """
        effort = effort_of(timeout, bytes_per_second)
        survey = self._quiet()
        number = survey.number_of(server)
        targets = [each for each in survey.willing if each != number]
        if not targets:
            raise FailedPreconditionError(
                f"server {number} is the last one that may have tasks; start another one with the "
                "same --arbiter and another --task, and name it to `stratagem servers add`"
            )
        weights = weights_of(self._measured(survey).values())
        moves = drained(survey.placement, weights, number, targets)
        address = survey.addresses[number]
        self._calls.set_draining(address, True)
        try:
            self._carry_out(moves, survey, effort)
        except BaseException:
            self._calls.set_draining(address, False)
            raise
        return moves

    def add(
        self, address: str, timeout: float = 300.0, bytes_per_second: float | None = None
    ) -> Sequence[TaskMove]:
        """Give a server that was started, or drained, its share of the tasks.

        Args:
            address: Its "host:port".
            timeout: The longest time for a task to move, in seconds.
            bytes_per_second: The most bytes of values that a server sends in a second, and that
                another one then loads, so that training has processors and network left; by
                default as many as possible.

        Returns:
            What has moved.

        Raises:
            InvalidArgumentError: Nothing could move at `bytes_per_second`.
            AlreadyExistsError: Another server has its number.
            FailedPreconditionError: It has another arbiter or other settings, a task is about to
                move, or no server has two tasks of which one is worth a move.
            UnavailableError: It, or a server that serves tasks, does not answer.
            DeadlineExceededError: A task has not moved in time.
            PermissionDeniedError: This is the program of a worker or an evaluator.
        """
        effort = effort_of(timeout, bytes_per_second)
        before = self._quiet()
        found = self._newcomer(address, before)
        self._added.append(address)
        survey = self._quiet()
        moves = self._balanced(survey, sorted({*survey.willing, found.server}))
        if not moves and not any(task.bytes for task in found.tasks):
            raise FailedPreconditionError(
                f"there is nothing to give to server {found.server}: no server has two tasks with "
                "variables of which one is worth a move. A cluster uses no more servers than it "
                "has tasks; begin it with more, as by `stratagem run --movable --tasks 8`"
            )
        self._calls.set_draining(address, False)
        self._carry_out(moves, survey, effort)
        return moves

    def rebalance(
        self, timeout: float = 300.0, bytes_per_second: float | None = None
    ) -> Sequence[TaskMove]:
        """Move tasks so that servers are about equally loaded, by bytes and by calls.

        Args:
            timeout: The longest time for a task to move, in seconds.
            bytes_per_second: The most bytes of values that a server sends in a second, and that
                another one then loads, so that training has processors and network left; by
                default as many as possible.

        Returns:
            What has moved; nothing where no move would make much of a difference.

        Raises:
            InvalidArgumentError: Nothing could move at `bytes_per_second`.
            FailedPreconditionError: A task is about to move.
            UnavailableError: A server that serves tasks does not answer.
            DeadlineExceededError: A task has not moved in time.
            PermissionDeniedError: This is the program of a worker or an evaluator.
        """
        effort = effort_of(timeout, bytes_per_second)
        survey = self._quiet()
        moves = self._balanced(survey, survey.willing)
        self._carry_out(moves, survey, effort)
        return moves

    @property
    def _known(self) -> Sequence[str]:
        return [*self._addresses(), *self._added]

    def _quiet(self) -> Survey:
        """Return what servers say of themselves, if nothing is against moving tasks."""
        survey = surveyed(self._calls, self._known)
        survey.require_all()
        survey.require_quiet()
        return survey

    def _newcomer(self, address: str, survey: Survey) -> DescribeServerResponse:
        """Return what a server says of itself that is to get tasks."""
        found = self._calls.describe([address])[address]
        if isinstance(found, StratagemError):
            raise found
        present = survey.servers.get(found.server)
        others = surveyed(self._calls, [address]).views
        if any(others.get(task) != view for task, view in survey.views.items()):
            raise FailedPreconditionError(
                f"the server at {address} has another --arbiter than the servers of this cluster; "
                "start it with theirs"
            )
        if present is not None and present.process != found.process:
            raise AlreadyExistsError(
                f"the server at {survey.addresses[found.server]} has number {found.server}, too; "
                f"start the one at {address} with another --task"
            )
        return found

    def _measured(self, survey: Survey, seconds: float = 1.0) -> Mapping[int, TaskLoad]:
        """Return the loads of all tasks, by index; calls are counted for so many seconds."""
        began = time.monotonic()
        time.sleep(seconds)
        answers = self._calls.describe(survey.addresses.values())
        passed = time.monotonic() - began
        before = {task.task: task for each in survey.servers.values() for task in each.tasks}
        after = [
            task
            for answer in answers.values()
            if isinstance(answer, DescribeServerResponse)
            for task in answer.tasks
        ]
        return {task.task: _load(before.get(task.task), task, passed) for task in after}

    def _balanced(self, survey: Survey, servers: Sequence[int]) -> Sequence[TaskMove]:
        loads = self._measured(survey)
        placement = {
            task: server
            for task, server in survey.placement.items()
            if server in servers and task in loads
        }
        weights = weights_of(loads[task] for task in placement)
        return balanced(placement, weights, servers)

    def _carry_out(self, moves: Sequence[TaskMove], survey: Survey, effort: Effort) -> None:
        made: list[TaskMove] = []
        for move in moves:
            try:
                self._calls.take(survey.addresses[move.target], move.task, effort)
            except StratagemError as error:
                raise self._stopped(error, move, made, survey) from error
            made.append(move)
        self._await_clients(moves, survey)

    def _stopped(
        self, error: StratagemError, move: TaskMove, made: Sequence[TaskMove], survey: Survey
    ) -> StratagemError:
        """Return the error of a move that has failed, with what is against it and what was made."""
        obstacle = self._task_at(move.source, move.task, survey).obstacle
        reason = (
            f"{error.message}. {obstacle[:1].upper()}{obstacle[1:]}" if obstacle else error.message
        )
        moved = ", ".join(f"/job:ps/task:{each.task} to server {each.target}" for each in made)
        return type(error)(
            f"/job:ps/task:{move.task} has not moved from server {move.source} to server "
            f"{move.target}: {reason}. {f'Moved were {moved}' if moved else 'Nothing has moved'}"
        )

    def _task_at(self, server: int, task: int, survey: Survey) -> ServedTask:
        """Return what a server says of a task; an empty message if it does not serve it."""
        answer = self._calls.describe([survey.addresses[server]])[survey.addresses[server]]
        tasks = answer.tasks if isinstance(answer, DescribeServerResponse) else ()
        return next((each for each in tasks if each.task == task), ServedTask())

    def _await_clients(self, moves: Sequence[TaskMove], survey: Survey) -> None:
        """Wait until all clients have asked for the tasks where they are now."""
        until = time.monotonic() + _FOLLOWING_SECONDS
        for move in moves:
            while unheard := self._task_at(move.target, move.task, survey).unheard:
                if time.monotonic() >= until:
                    _LOG.warning(
                        "%s clients have not asked for /job:ps/task:%s at server %s yet; they find "
                        "it as long as server %s, or another one that they know, still runs",
                        *(unheard, move.task, move.target, move.source),
                    )
                    break
                time.sleep(_POLL_SECONDS)


def _load(before: ServedTask | None, after: ServedTask, seconds: float) -> TaskLoad:
    calls = after.calls - before.calls if before is not None else 0
    # Another server that serves the task now counts from 0.
    return TaskLoad(after.task, after.bytes, max(calls, 0) / seconds)

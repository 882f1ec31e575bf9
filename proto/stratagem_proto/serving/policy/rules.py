"""The rules of a policy, and what they let a caller do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from stratagem_proto.protocol import MAX_NAME_LENGTH, name_of_whole
from stratagem_proto.serving.policy.patterns import NamePattern
from stratagem_proto.v1.access_pb2 import (
    ACTION_CONFIGURE,
    ACTION_MOVE,
    ACTION_SAVE,
    ACTION_UNSPECIFIED,
    Action,
)
from stratagem_proto.v1.session_pb2 import ROLE_SERVER, Role, Task

# A server has far fewer clients that train, and most of them ask for the same variables again.
_CALLERS = 1024
_DECISIONS = 1 << 14

OF_SERVERS = frozenset({ACTION_CONFIGURE, ACTION_MOVE, ACTION_SAVE})
"""What is done to a server, and not to some of its variables."""

ALL_ACTIONS = frozenset(cast("list[Action]", Action.values())) - {ACTION_UNSPECIFIED}


def word_of(action: Action) -> str:
    """Return what an action is called in a policy, for instance "read"."""
    return Action.Name(action).removeprefix("ACTION_").lower()


@dataclass(frozen=True)
class Subject:
    """Whom a rule is about: all that have a role, or all whose tasks have a pattern.

    Attributes:
        role: The role; None if it is about tasks.
        tasks: The pattern of "job/index"; None if it is about a role.
    """

    role: Role | None = None
    tasks: NamePattern | None = None

    def fits(self, role: Role, job: str, index: int) -> bool:
        """Return whether a caller is meant; only one with a job is meant by its task."""
        if self.tasks is None:
            return role == self.role
        return bool(job) and self.tasks.matches(f"{job}/{index}")


@dataclass(frozen=True)
class Rule:
    """What a line of a policy lets somebody do.

    Attributes:
        line: The number of the line, from 1.
        subject: Whom it lets do something.
        actions: What it lets them do.
        names: To which variables; none if all actions are those of servers.
    """

    line: int
    subject: Subject
    actions: frozenset[Action]
    names: Sequence[NamePattern] = ()

    def allows(self, action: Action, name: str | None) -> bool:
        """Return whether it lets somebody do something to a variable; None for any or no one."""
        if action not in self.actions:
            return False
        return name is None or any(pattern.matches(name) for pattern in self.names)


class Grant:
    """What a policy lets a caller do: what any of the rules about it allows.

    Args:
        rules: The rules about it.

    Attributes:
        rules: As the argument.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self._kept = lru_cache(_DECISIONS)(self._allows)

    def allows(self, action: Action, name: str | None = None) -> bool:
        """Return whether it may do something.

        Args:
            action: What.
            name: To which variable, where the part of a variable is as good as all of it; None if
                it is enough that there is one to which it may, or if it is about a server.
        """
        # Clients can send what could not be a name, and it must not fill memory.
        decide = self._allows if name and len(name) > MAX_NAME_LENGTH else self._kept
        return decide(action, name)

    def _allows(self, action: Action, name: str | None) -> bool:
        names = {None} if name is None else {name, name_of_whole(name)}
        return any(rule.allows(action, each) for rule in self.rules for each in names)


class AccessPolicy:
    """What tasks and roles may do to which variables.

    Args:
        source: Where it is written, for messages.
        rules: Its rules, in their order, which makes no difference.

    Attributes:
        source: As the argument.
        rules: As the argument.
    """

    def __init__(self, source: str, rules: Sequence[Rule]) -> None:
        self.source, self.rules = source, rules
        self._kept = lru_cache(_CALLERS)(self._grant)

    def grant(self, role: Role, task: Task) -> Grant | None:
        """Return what a caller may do; None if no rule is about it, so that its role decides.

        Servers act for each other, and no rule is about them. Whoever leaves its task out would
        escape the rules of tasks, so it may do only what rules of its role allow.

        Args:
            role: The role of the caller.
            task: Its task; without a job if it has none.
        """
        return self._kept(role, task.job, task.index)

    def _grant(self, role: Role, job: str, index: int) -> Grant | None:
        if role == ROLE_SERVER:
            return None
        rules = [rule for rule in self.rules if rule.subject.fits(role, job, index)]
        escapes = not job and any(rule.subject.tasks for rule in self.rules)
        return Grant(rules) if rules or escapes else None

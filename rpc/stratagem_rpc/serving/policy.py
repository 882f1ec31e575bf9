"""The policy of a server: its language, its rules, and what they let a caller do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import cast

from google.protobuf.message import Message

from stratagem_proto.errors import InvalidArgumentError, PermissionDeniedError
from stratagem_proto.protocol import MAX_NAME_LENGTH, name_of_whole
from stratagem_proto.v1 import (
    checkpoint_pb2,
    lookup_pb2,
    parameter_server_service_pb2,
    publication_pb2,
    servers_pb2,
)
from stratagem_proto.v1.access_pb2 import (
    ACTION_CONFIGURE,
    ACTION_MOVE,
    ACTION_PUBLISH,
    ACTION_SAVE,
    ACTION_UNSPECIFIED,
    Action,
)
from stratagem_proto.v1.session_pb2 import ROLE_SERVER, ROLE_UNSPECIFIED, Role, Task
from stratagem_rpc.serving.access import Access, Caller, Need, name_of

_ANY_SEGMENTS = "**"


class NamePattern:
    """A pattern of names whose segments are separated by slashes.

    A match takes time in proportion to the lengths of both, whatever names a client sends.

    Args:
        text: The pattern. `**` is a segment of its own, and stands for any number of them, none
            included.

    Attributes:
        text: As the argument.

    Raises:
        ValueError: `**` is a part of a segment.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._segments = [_segment(segment) for segment in text.split("/")]

    def __repr__(self) -> str:
        return f"NamePattern({self.text!r})"

    def matches(self, name: str) -> bool:
        """Return whether all of a name is as the pattern says."""
        places = self._with_none({0})
        for segment in name.split("/"):
            places = self._with_none(after for at in places for after in self._after(at, segment))
            if not places:
                return False
        return len(self._segments) in places

    def _after(self, place: int, segment: str) -> Iterator[int]:
        """Yield where the pattern may go on behind a segment of the name."""
        if place == len(self._segments):
            return
        pattern = self._segments[place]
        if pattern is None:
            yield place
        elif pattern.matches(segment):
            yield place + 1

    def _with_none(self, places: Iterable[int]) -> set[int]:
        """Return places, and those that are reached where `**` stands for no segment."""
        found = set[int]()
        for place in places:
            found.add(place)
            while place < len(self._segments) and self._segments[place] is None:
                place += 1
                found.add(place)
        return found


class _SegmentPattern:
    """A pattern of one segment, which begins and ends with its first and last piece."""

    def __init__(self, text: str) -> None:
        self._first, *others = text.split("*")
        *self._middle, self._last = others or [""]
        self._is_exact = not others

    def matches(self, segment: str) -> bool:
        if self._is_exact:
            return segment == self._first
        begin, end = len(self._first), len(segment) - len(self._last)
        if begin > end or not (segment.startswith(self._first) and segment.endswith(self._last)):
            return False
        for piece in self._middle:
            found = segment.find(piece, begin, end)
            if found < 0:
                return False
            begin = found + len(piece)
        return True


def _segment(text: str) -> _SegmentPattern | None:
    """Return the pattern of a segment; None for `**`."""
    if text == _ANY_SEGMENTS:
        return None
    if _ANY_SEGMENTS in text:
        raise ValueError(f"{_ANY_SEGMENTS} is only part of {text!r}")
    return _SegmentPattern(text)


# A server has far fewer clients that train, and most of them ask for the same variables again.
_CALLERS = 1024
_DECISIONS = 1 << 14

OF_SERVERS = frozenset({ACTION_CONFIGURE, ACTION_MOVE, ACTION_PUBLISH, ACTION_SAVE})
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


_SERVICES = (
    parameter_server_service_pb2.DESCRIPTOR.services_by_name["ParameterServerService"],
    checkpoint_pb2.DESCRIPTOR.services_by_name["CheckpointService"],
    publication_pb2.DESCRIPTOR.services_by_name["PublicationService"],
    lookup_pb2.DESCRIPTOR.services_by_name["LookupService"],
    servers_pb2.DESCRIPTOR.services_by_name["ServersService"],
)


@cache
def actions_of(role: Role) -> frozenset[Action]:
    """Return what a role may do, as far as policies are about it."""
    calls = [Access(method) for service in _SERVICES for method in service.methods]
    allowed = [call.needs for call in calls if role in call.roles]
    # What calls do only if something is given is said of another RPC that always does it.
    return frozenset(need.action for needs in allowed for need in needs if not need.given)


_LIST = r"[^\s,]+(?:\s*,\s*[^\s,]+)*"
_RULE = re.compile(rf"(\S+)\s+may\s+({_LIST})(?:\s+({_LIST}))?")
_SEPARATOR = re.compile(r"\s*,\s*")
_NAME = re.compile(r"[A-Za-z0-9_.\-/:+*]+")
# No task has an index with a zero in front.
_TASK = re.compile(r"[^/]+/(?:0|[1-9][0-9]*|(?:[1-9][0-9]*)?\*[0-9]*)")

_EVERYTHING = "everything"
_SERVER = name_of(ROLE_SERVER)
_ROLES = {
    name_of(role): role
    for role in cast("list[Role]", Role.values())
    if role not in (ROLE_UNSPECIFIED, ROLE_SERVER)
}
_ACTIONS = {word_of(action): action for action in sorted(ALL_ACTIONS)}


def read_policy(path: Path) -> AccessPolicy:
    """Return the policy in a file.

    Raises:
        InvalidArgumentError: The file cannot be read, or `parse_policy` refuses it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgumentError(
            f"the policy {str(path)!r} cannot be read: {error.strerror}; check --policy"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"the policy {str(path)!r} is not text: {error}; write rules in UTF-8 into it"
        ) from error
    return parse_policy(text, str(path.absolute()))


def parse_policy(text: str, source: str) -> AccessPolicy:
    """Return the policy of some text.

    Args:
        text: A rule in each line. What follows a `#` is a comment.
        source: Where the text comes from, for messages.

    Raises:
        InvalidArgumentError: A line is no rule, names what there is not, or lets a role do what it
            may not do anyhow; or there is no rule.
    """
    numbered = enumerate((line.partition("#")[0].strip() for line in text.splitlines()), 1)
    rules = [_Line(source, number).rule(line) for number, line in numbered if line]
    if not rules:
        raise InvalidArgumentError(
            f"the policy {source!r} has no rule, and would keep nothing from anybody; write one, "
            "such as 'worker/* may read, update emb/**', or leave --policy out"
        )
    return AccessPolicy(source, rules)


class _Line:
    """A line of a policy.

    Args:
        source: Where it is from.
        number: Its number, from 1.
    """

    def __init__(self, source: str, number: int) -> None:
        self._source, self._number = source, number

    def rule(self, text: str) -> Rule:
        """Return the rule that a line is; raise as `parse_policy`."""
        found = _RULE.fullmatch(text)
        if found is None:
            raise self._refusal(
                f"{text[:80]!r} is no rule",
                "write WHO may WHAT, WHAT... NAME, NAME..., such as 'worker/* may read, update "
                "emb/**'",
            )
        who, actions, names = found.groups()
        subject = self._subject(who)
        return self._checked(subject, self._actions(actions), self._names(names))

    def _subject(self, text: str) -> Subject:
        if text == _SERVER:
            raise self._refusal(
                "servers act for each other, and no policy is about them",
                "leave the line out; whoever has no other certificate than its own is no server",
            )
        if text in _ROLES:
            return Subject(role=_ROLES[text])
        if _TASK.fullmatch(text) and _NAME.fullmatch(text) and "**" not in text:
            return Subject(tasks=NamePattern(text))
        raise self._refusal(
            f"{text[:80]!r} is neither a role nor a pattern of tasks",
            f"write one of {_listed(_ROLES)}, or JOB/TASK, such as worker/0 or worker/*",
        )

    def _actions(self, text: str) -> frozenset[Action]:
        words = _SEPARATOR.split(text)
        if words == [_EVERYTHING]:
            return ALL_ACTIONS
        for word in words:
            if word not in _ACTIONS:
                raise self._refusal(
                    f"{word[:80]!r} is nothing that anybody may do",
                    f"write some of {_listed(_ACTIONS)}, or {_EVERYTHING} alone",
                )
        return frozenset(_ACTIONS[word] for word in words)

    def _names(self, text: str | None) -> Sequence[NamePattern]:
        return [self._pattern(name) for name in _SEPARATOR.split(text)] if text else []

    def _pattern(self, text: str) -> NamePattern:
        if not _NAME.fullmatch(text):
            raise self._refusal(
                f"{text[:80]!r} can be no variable's name",
                "names have letters, digits and _.-/:+, and patterns * and **, too",
            )
        try:
            return NamePattern(text)
        except ValueError as error:
            raise self._refusal(
                str(error), "** stands for whole segments; write it between slashes, as in emb/**"
            ) from error

    def _checked(
        self,
        subject: Subject,
        actions: frozenset[Action],
        names: Sequence[NamePattern],
    ) -> Rule:
        if actions == ALL_ACTIONS:
            self._check_everything(names)
            names = [NamePattern("**")]
        else:
            self._check_names(actions, names)
        if subject.role is not None:
            self._check_role(subject.role, actions)
        return Rule(self._number, subject, actions, names)

    def _check_everything(self, names: Sequence[NamePattern]) -> None:
        if names:
            raise self._refusal(
                f"{_EVERYTHING} is not only about {names[0].text!r}",
                "leave the names out, or list what may be done to them",
            )

    def _check_names(self, actions: frozenset[Action], names: Sequence[NamePattern]) -> None:
        of_servers, others = actions & OF_SERVERS, actions - OF_SERVERS
        if others and not names:
            raise self._refusal(
                f"{_words(others)} is said of no variable", "add their names, or ** for all"
            )
        if of_servers and names:
            raise self._refusal(
                f"{_words(of_servers)} is about a server, and not about {names[0].text!r}",
                f"give {_words(of_servers)} a line without names",
            )

    def _check_role(self, role: Role, actions: frozenset[Action]) -> None:
        own = actions_of(role)
        missing = (actions - own) if actions != ALL_ACTIONS or not own else frozenset()
        if missing:
            raise self._refusal(
                f"the role {name_of(role)} may not {_words(missing)}, and no policy lets a role do "
                "more than it may",
                f"leave that out; it may {_words(own) or 'only see the status of servers'}",
            )

    def _refusal(self, why: str, remedy: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"the policy {self._source!r}, line {self._number}: {why}; {remedy}"
        )


def _words(actions: Iterable[Action]) -> str:
    return _listed(map(word_of, sorted(actions)))


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


_MOST_LINES = 5


class Permissions:
    """What the policy of a server lets its callers do.

    Args:
        policy: The policy.
        owners: Returns the variables under which a name counts: the owners of a slot, and else the
            name itself.
    """

    def __init__(self, policy: AccessPolicy, owners: Callable[[str], Iterable[str]]) -> None:
        self._policy, self._owners = policy, owners

    def require(self, rpc: str, needs: Sequence[Need], caller: Caller, request: Message) -> None:
        """Check that a caller may do all that a request is for.

        Args:
            rpc: The name of the RPC.
            needs: What its calls do.
            caller: Who calls.
            request: The request, or its header.

        Raises:
            PermissionDeniedError: It may not do one of these things.
        """
        grant = self._policy.grant(caller.role, caller.task)
        if grant is None:
            return
        for need in needs:
            if not need.is_in(request):
                continue
            # Who may do it to none of a request's variables may not do it to any.
            if not grant.allows(need.action):
                raise self._denied(rpc, grant, caller, need.action, next(need.names(request), ""))
            self._require_all(rpc, grant, need.action, caller, need.names(request))

    def require_all(self, rpc: str, action: Action, caller: Caller, names: Iterable[str]) -> None:
        """Check that a caller may do something to variables; raise as `require`."""
        if (grant := self._policy.grant(caller.role, caller.task)) is not None:
            self._require_all(rpc, grant, action, caller, names)

    def _require_all(
        self, rpc: str, grant: Grant, action: Action, caller: Caller, names: Iterable[str]
    ) -> None:
        for name in names:
            if not all(grant.allows(action, owner) for owner in self._owners(name)):
                raise self._denied(rpc, grant, caller, action, name)

    def _denied(
        self,
        rpc: str,
        grant: Grant,
        caller: Caller,
        action: Action,
        variable: str = "",
    ) -> PermissionDeniedError:
        what, role = word_of(action), name_of(caller.role)
        rule = what if action in OF_SERVERS else f"{what} {variable or 'NAME'}"
        task = f"{caller.task.job}/{caller.task.index}" if caller.task.job else role
        return PermissionDeniedError(
            f"{rpc} is not for {caller.label}, which has the role {role}: the policy "
            f"{self._policy.source!r} {_lines(grant)}, and not "
            f"{what}{f' {variable!r}' if variable else ''}. If it is to, add '{task} may {rule}' "
            "there and start the servers again; else leave this out of its program",
            variable=variable,
        )


def _lines(grant: Grant) -> str:
    if not grant.rules:
        return "has rules of tasks, so who names no task may do what rules of its role allow"
    lines = [str(rule.line) for rule in grant.rules[:_MOST_LINES]]
    more = ["..."] if len(grant.rules) > _MOST_LINES else []
    plural = "s" * (len(grant.rules) > 1)
    return f"lets it do other things (line{plural} {', '.join(lines + more)})"

"""The language of policies: a rule in each line, such as `worker/* may read, update emb/**`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.serving.access import name_of
from stratagem_proto.serving.policy.contract import actions_of
from stratagem_proto.serving.policy.patterns import NamePattern
from stratagem_proto.serving.policy.rules import (
    ALL_ACTIONS,
    OF_SERVERS,
    AccessPolicy,
    Rule,
    Subject,
    word_of,
)
from stratagem_proto.v1.access_pb2 import Action
from stratagem_proto.v1.session_pb2 import ROLE_SERVER, ROLE_UNSPECIFIED, Role

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

"""The language of policies: what a line means, and which lines are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.access_pb2 import (
    ACTION_ASSIGN,
    ACTION_CREATE,
    ACTION_MOVE,
    ACTION_READ,
    ACTION_SAVE,
    ACTION_UPDATE,
    Action,
)
from stratagem_proto.v1.session_pb2 import (
    ROLE_CHIEF,
    ROLE_EVALUATOR,
    ROLE_OBSERVER,
    ROLE_OPERATOR,
    ROLE_SERVER,
    ROLE_UNSPECIFIED,
    ROLE_WORKER,
    Role,
    Task,
)
from stratagem_rpc.certificates.identity import ROLES
from stratagem_rpc.serving.access import Access
from stratagem_rpc.serving.policy import (
    _SERVICES,
    ALL_ACTIONS,
    OF_SERVERS,
    AccessPolicy,
    actions_of,
    parse_policy,
    read_policy,
    word_of,
)
from tests.roles import services

ANY_ROLE = st.sampled_from([role for role in Role.values() if role != ROLE_UNSPECIFIED])
TASKS = st.builds(Task, job=st.sampled_from(["", "worker", "ps"]), index=st.integers(0, 12))
WORKER = Task(job="worker", index=1)
OF_VARIABLES = sorted(ALL_ACTIONS - OF_SERVERS)
SUBJECTS = st.sampled_from(["worker/*", "worker/1", "*/1", "*/*", "worker/1*"])
RULES = st.builds(
    "{} may {} {}".format,
    SUBJECTS,
    st.lists(st.sampled_from([*map(word_of, OF_VARIABLES)]), min_size=1).map(", ".join),
    st.lists(st.sampled_from(["emb/**", "dense", "**", "e*"]), min_size=1).map(", ".join),
)
NAMES = st.sampled_from(["emb", "emb/a", "dense", "emb/part_3", "other"])


def policy(*lines: str) -> AccessPolicy:
    return parse_policy("\n".join(lines), "rules")


def allowed(
    of: AccessPolicy,
    role: Role,
    task: Task,
    action: Action,
    name: str | None = None,
) -> bool | None:
    """Whether a policy allows something; None if it is silent about the caller."""
    grant = of.grant(role, task)
    return None if grant is None else grant.allows(action, name)


def test_a_rule_lets_a_subject_do_what_it_says_and_nothing_else() -> None:
    rules = policy("worker/* may read, update emb/**, dense  # what they train")
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_UPDATE, "emb/users")
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_READ, "dense")
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_READ)
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_UPDATE, "dense/a") is False
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_ASSIGN, "dense") is False
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_ASSIGN) is False


def test_who_is_the_subject_of_no_rule_may_what_the_role_may() -> None:
    rules = policy("worker/1 may read dense")
    assert allowed(rules, ROLE_WORKER, Task(job="worker", index=2), ACTION_ASSIGN, "a") is None
    by_role = policy("worker may read dense")
    assert allowed(by_role, ROLE_CHIEF, Task(), ACTION_CREATE, "a") is None
    assert allowed(by_role, ROLE_WORKER, Task(), ACTION_ASSIGN, "a") is False


def test_nobody_escapes_the_rules_of_its_task_by_leaving_the_task_out() -> None:
    rules = policy("worker/1 may read dense", "chief may everything")
    assert allowed(rules, ROLE_WORKER, Task(), ACTION_READ, "dense") is False
    assert allowed(rules, ROLE_OPERATOR, Task(), ACTION_MOVE) is False
    assert allowed(rules, ROLE_CHIEF, Task(), ACTION_CREATE, "a")
    both = policy("worker/1 may read dense", "worker may read other")
    assert allowed(both, ROLE_WORKER, Task(), ACTION_READ, "other")
    assert allowed(both, ROLE_WORKER, Task(), ACTION_READ, "dense") is False


@given(st.lists(RULES, min_size=1, max_size=4), TASKS)
def test_servers_are_subject_to_no_rule(lines: list[str], task: Task) -> None:
    assert policy(*lines).grant(ROLE_SERVER, task) is None


def test_a_chief_among_the_workers_is_meant_by_its_task_and_not_by_their_role() -> None:
    chief = Task(job="worker", index=0)
    assert allowed(policy("worker may read a"), ROLE_CHIEF, chief, ACTION_CREATE, "a") is None
    by_task = policy("worker/* may read a")
    assert allowed(by_task, ROLE_CHIEF, chief, ACTION_CREATE, "a") is False
    both = policy("worker/* may read a", "chief may everything")
    assert allowed(both, ROLE_CHIEF, chief, ACTION_CREATE, "a")
    assert allowed(both, ROLE_CHIEF, chief, ACTION_SAVE)


def test_a_part_of_a_variable_counts_as_the_variable_too() -> None:
    for pattern in ("emb", "emb/part_*", "emb/**"):
        rules = policy(f"worker may update {pattern}")
        assert allowed(rules, ROLE_WORKER, WORKER, ACTION_UPDATE, "emb/part_3")
    rules = policy("worker may update emb")
    assert allowed(rules, ROLE_WORKER, WORKER, ACTION_UPDATE, "emb/part_x") is False


@given(st.lists(RULES, min_size=1, max_size=4), RULES, ANY_ROLE, TASKS)
def test_another_rule_for_the_same_subject_takes_nothing_away(
    lines: list[str], more: str, role: Role, task: Task
) -> None:
    before, after = policy(*lines), policy(*lines, more)
    for action in OF_VARIABLES:
        for name in ("emb", "emb/a", "dense", "emb/part_3"):
            if allowed(before, role, task, action, name):
                assert allowed(after, role, task, action, name)


@given(st.lists(RULES, min_size=1, max_size=4), ANY_ROLE, TASKS, NAMES)
def test_the_order_of_rules_makes_no_difference(
    lines: list[str], role: Role, task: Task, name: str
) -> None:
    for action in OF_VARIABLES:
        decided = allowed(policy(*lines), role, task, action, name)
        assert decided is allowed(policy(*reversed(lines)), role, task, action, name)
        # Whether anything is allowed for some variable, as for what names none.
        if decided:
            assert allowed(policy(*lines), role, task, action)


@given(st.text())
def test_whatever_the_text_it_is_a_policy_or_refused_by_name(text: str) -> None:
    try:
        found = parse_policy(text, "rules")
    except InvalidArgumentError as error:
        assert "'rules'" in error.message
    else:
        assert found.rules


REFUSED = {
    "worker/* shall read emb": "no rule; write WHO may WHAT",
    "worker/* may read emb dense": "no rule; write WHO may WHAT",
    "may read emb": "no rule",
    "wroker may read emb": "'wroker' is neither a role nor a pattern of tasks; write one of worker",
    "worker/one may read emb": "neither a role nor a pattern of tasks",
    "worker/01 may read emb": "neither a role nor a pattern of tasks",
    "worker/0* may read emb": "neither a role nor a pattern of tasks",
    "worker/** may read emb": "neither a role nor a pattern of tasks",
    "a/b/1 may read emb": "neither a role nor a pattern of tasks",
    "unspecified may read emb": "neither a role",
    "worker may raed emb": "'raed' is nothing that anybody may do; write some of read, update",
    "worker may Read emb": "'Read' is nothing",
    "worker may read, everything emb": "'everything' is nothing",
    "worker may UpdateAndRead emb": "'UpdateAndRead' is nothing",
    "worker may read": "read is said of no variable; add their names, or \\*\\* for all",
    "chief may save emb": "save is about a server, and not about 'emb'; give save a line without",
    "chief may read, save emb": "save is about a server",
    "worker may everything emb": "everything is not only about 'emb'; leave the names out",
    "worker may read emb/a**": "is only part of 'a\\*\\*'; \\*\\* stands for whole segments",
    "worker may read em[b]": "can be no variable's name; names have letters",
    "evaluator may read, update emb": "the role evaluator may not update, .*; it may read$",
    "worker may create emb": "the role worker may not create",
    "observer may read **": "it may only see the status of servers",
    "observer may everything": "it may only see the status of servers",
    "server may move": "servers act for each other, and no policy is about them; leave the line",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_line_is_refused_with_its_place_and_what_to_write(line: str) -> None:
    with pytest.raises(InvalidArgumentError, match=REFUSED[line]) as refused:
        policy("# mine", "", line)
    assert "the policy 'rules', line 3: " in refused.value.message


def test_a_policy_without_a_rule_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'rules' has no rule"):
        policy("# worker/* may read a")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="missing' cannot be read: No such file"):
        read_policy(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="binary' is not text"):
        read_policy(tmp_path / "binary")
    (tmp_path / "some").write_text("chief may everything\r\nworker may read a\r\n")
    assert [rule.line for rule in read_policy(tmp_path / "some").rules] == [1, 2]


def test_all_services_whose_calls_policies_decide_are_known() -> None:
    deciding = {
        service.full_name
        for service in services()
        if any(Access(method).needs for method in service.methods)
    }
    assert deciding == {service.full_name for service in _SERVICES}


def test_what_roles_may_by_the_contract() -> None:
    assert actions_of(ROLE_CHIEF) == ALL_ACTIONS
    assert actions_of(ROLE_WORKER) == {ACTION_READ, ACTION_UPDATE, ACTION_ASSIGN}
    assert actions_of(ROLE_EVALUATOR) == {ACTION_READ}
    assert not actions_of(ROLE_OBSERVER)
    own = {*ROLES} - {"observer", "server"}
    assert all(policy(f"{role} may everything").rules for role in own)

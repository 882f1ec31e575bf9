"""What `stratagem status` and `doctor` make of what replicas say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratagem_deploy.watching.asking import ServerAnswer, ServerPlace, find
from stratagem_deploy.watching.doctor import findings
from stratagem_deploy.watching.rows import replica_words
from stratagem_deploy.watching.tables import tables, variables_of
from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.replication_pb2 import (
    STANDING_BACKUP,
    STANDING_CATCHING_UP,
    STANDING_FENCED,
    STANDING_PRIMARY,
    Replica,
    ReplicationStatus,
    Standing,
    View,
)
from stratagem_proto.v1.session_pb2 import Task
from stratagem_proto.v1.status_pb2 import (
    GetStatusResponse,
    ParameterServerStatus,
    SessionStatus,
    VariableStatus,
)
from stratagem_proto.v1.tensor_pb2 import TensorSpec
from stratagem_proto.v1.variable_pb2 import VariableInfo, VariableSpec

PATIENCE = 2.0
ADDRESSES = ("10.0.0.1:2222", "10.0.0.2:2222")


def place(index: int) -> ServerPlace:
    return ServerPlace(ADDRESSES[index], "ps:0", replica=index)


def said(
    index: int, standing: Standing, view: View, behind: int = 0, trouble: str = ""
) -> ServerAnswer:
    status = ReplicationStatus(
        standing=standing,
        replica=Replica(index=index, address=ADDRESSES[index]),
        view=view,
        behind=behind,
        trouble=trouble,
    )
    server = ParameterServerStatus(replication=status)
    answer = GetStatusResponse(task=Task(job="ps", index=0), parameter_server=server)
    return ServerAnswer(place(index), answer, time=100.0)


def silent(index: int) -> ServerAnswer:
    return ServerAnswer(place(index), None, "connection refused", time=100.0)


def view(epoch: int, primary: int, has_backup: bool = True) -> View:
    found = View(epoch=epoch, primary=Replica(index=primary, address=ADDRESSES[primary]))
    if has_backup:
        found.backup.index = 1 - primary
    return found


def test_all_is_well_with_a_primary_and_a_backup() -> None:
    now = view(3, 1)
    answers = [said(0, STANDING_BACKUP, now), said(1, STANDING_PRIMARY, now)]
    assert findings(answers, PATIENCE) == []
    assert [answer.label for answer in answers] == ["ps:0 replica 0", "ps:0"]


def test_a_task_whose_other_replica_does_not_answer_has_no_backup() -> None:
    answers = [silent(0), said(1, STANDING_PRIMARY, view(4, 1, has_backup=False))]
    (finding,) = findings(answers, PATIENCE)
    assert "ps:0 has no backup: ps:0 replica 0 does not answer" in finding.what
    assert (finding.culprits, finding.stalls) == (("ps:0 replica 0",), False)


def test_a_backup_that_does_not_catch_up_is_named_with_its_reason() -> None:
    now = view(4, 0, has_backup=False)
    answers = [
        said(0, STANDING_PRIMARY, now),
        said(1, STANDING_CATCHING_UP, now, trouble="its kernels compute other bits"),
    ]
    (finding,) = findings(answers, PATIENCE)
    assert "ps:0 replica 1 catches up: its kernels compute other bits" in finding.what


def test_a_backup_that_is_far_behind_is_named() -> None:
    now = view(4, 0)
    answers = [said(0, STANDING_PRIMARY, now, behind=5000), said(1, STANDING_BACKUP, now)]
    (finding,) = findings(answers, PATIENCE)
    assert "ps:0: its backup is 5000 records behind" in finding.what


@pytest.mark.parametrize("other", [silent(1), said(1, STANDING_CATCHING_UP, view(2, 0))])
def test_a_task_that_nobody_serves_comes_first(other: ServerAnswer) -> None:
    answers = [said(0, STANDING_FENCED, view(2, 0), trouble="the arbiter is away"), other]
    (finding,) = findings(answers, PATIENCE)
    assert finding.stalls
    assert "no replica of ps:0 serves: ps:0 replica 0 is: may not answer" in finding.what
    assert "the arbiter is away" in finding.what


def test_what_a_backup_knows_of_clients_and_variables_is_told_once() -> None:
    now = view(3, 0)
    answers = [said(0, STANDING_PRIMARY, now), said(1, STANDING_BACKUP, now)]
    for seconds, answer in zip((0.1, 60.0), answers, strict=True):
        assert answer.status is not None
        session = SessionStatus(task=Task(job="worker", index=0), silent_seconds=seconds)
        answer.status.sessions.append(session)
        found = VariableStatus(
            variable=VariableInfo(spec=VariableSpec(name="weight", tensor=TensorSpec())), bytes=8
        )
        answer.status.parameter_server.variables.append(found)
    assert findings(answers, PATIENCE) == []
    assert [(each["name"], each["place"]) for each in variables_of(answers)] == [("weight", "ps:0")]
    clients = {str(column.header): [*column.cells] for column in list(tables(answers))[1].columns}
    assert clients["servers"] == ["1"]


def test_a_replica_is_described_in_a_few_words() -> None:
    alone = said(1, STANDING_PRIMARY, view(4, 1, has_backup=False)).replication
    behind = said(0, STANDING_CATCHING_UP, view(4, 1), behind=7, trouble="it is busy").replication
    assert alone is not None
    assert behind is not None
    assert replica_words(alone) == "primary, epoch 4, no backup"
    assert replica_words(behind) == "catches up, epoch 4, 7 records behind, it is busy"


def test_each_replica_of_a_cluster_is_asked(tmp_path: Path) -> None:
    cluster = {"ps": [",".join(ADDRESSES), "10.0.0.3:2222"], "worker": ["w:1"]}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"cluster": cluster}))
    names = [(each.name, each.address) for each in find((), str(file)).places]
    assert names == [
        ("ps:0 replica 0", ADDRESSES[0]),
        ("ps:0 replica 1", ADDRESSES[1]),
        ("ps:1", "10.0.0.3:2222"),
        ("worker:0", "w:1"),
    ]


def test_replicas_of_a_worker_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"cluster": {"worker": ["w:1,w:2"]}}))
    with pytest.raises(InvalidArgumentError, match=r"/job:worker/task:0 is 'w:1,w:2'"):
        find((), str(file))

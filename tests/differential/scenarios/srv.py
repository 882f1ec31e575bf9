"""Servers of tasks."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario

CLUSTER = {"ps": ["localhost:0", "localhost:0"], "worker": ["localhost:0"]}


@scenario("SRV-1")
def a_task_that_is_not_the_only_one_has_to_be_named(lib: Library) -> Any:
    make = lib.distribute.Server
    return [
        attempt(make, CLUSTER, says=("Must specify an explicit `job_name`",)),
        attempt(make, CLUSTER, "ps", says=("Must specify an explicit `task_index`",)),
        attempt(make, "localhost:0"),
    ]


@scenario("SRV-1")
def a_server_tells_what_it_was_told(lib: Library) -> Any:
    config = lib.v1.ConfigProto(device_filters=["/job:worker"])
    server = lib.distribute.Server({"ps": ["localhost:0"]}, config=config)
    told = server.server_def
    filters = list(told.default_session_config.device_filters)
    same = lib.distribute.Server(told, start=False).server_def == told
    scheme, _, address = server.target.partition("://")
    own = [told.job_name, told.task_index, told.protocol]
    return [own, filters, same, scheme, address.partition(":")[0]]

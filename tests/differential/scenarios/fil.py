"""Device filters."""

from __future__ import annotations

from typing import Any

from tests.differential.library import Library
from tests.differential.scenario import scenario


@scenario("FIL-1")
def filters_of_a_task_replace_earlier_ones(lib: Library) -> Any:
    filters = lib.distribute.ClusterDeviceFilters()
    filters.set_device_filters("worker", 1, ["/job:worker"])
    filters.set_device_filters("worker", 1, ["/job:ps", "/job:worker/task:1"])
    return lib.device_filters(filters)


@scenario("FIL-1")
def filters_are_strings(lib: Library) -> Any:
    return lib.distribute.ClusterDeviceFilters().set_device_filters("ps", 0, [1])


@scenario("FIL-2")
def without_filters_all_servers_are_visible(lib: Library) -> Any:
    return lib.visible_servers([])


@scenario("FIL-2", "FIL-3")
def a_filter_lets_a_server_be_seen(lib: Library) -> Any:
    filters = (["/job:ps/task:1"], ["/job:ps"], ["/job:ps/task:0", "/job:worker"])
    return [lib.visible_servers(list(names)) for names in filters]

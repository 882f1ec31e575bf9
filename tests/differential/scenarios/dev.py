"""Names of devices."""

from __future__ import annotations

from typing import Any

from tests.differential.answer import attempt
from tests.differential.library import Library
from tests.differential.scenario import scenario


@scenario("DEV-1")
def names_are_completed(lib: Library) -> Any:
    names = ["", "/cpu:0", "/device:CPU:1", "/job:worker/task:1"]
    return [lib.devices.canonicalize(name) for name in names]


@scenario("DEV-1")
def a_default_completes_names_first(lib: Library) -> Any:
    default = "/job:worker/task:2/device:GPU:1"
    names = ["", "/cpu:0", "/job:ps", "/task:1"]
    return [lib.devices.canonicalize(name, default=default) for name in names]


@scenario("DEV-2")
def the_kind_of_a_full_name_is_in_capitals(lib: Library) -> Any:
    return [
        lib.devices.canonicalize("/cpu:0"),
        attempt(lib.devices.canonicalize, "/device:tpu:0"),
    ]


@scenario("DEV-3")
def names_are_relative_to_the_current_device(lib: Library) -> Any:
    with lib.device("/job:worker/task:1/device:CPU:1"):
        names = [lib.devices.resolve(name) for name in ("", "/cpu:0", "/task:3")]
    return [names, lib.devices.resolve("/cpu:0")]


@scenario("DEV-4")
def the_current_device_is_that_of_the_innermost_scope(lib: Library) -> Any:
    seen = [lib.devices.current()]
    with lib.device("/job:ps/replica:0/task:1/device:CPU:0"):
        seen.append(lib.devices.current())
        with lib.device("/device:CPU:1"):
            seen.append(lib.devices.current())
        seen.append(lib.devices.current())
    return [*seen, lib.devices.current()]


@scenario("DEV-1")
def cpu_and_gpu_may_be_in_small_letters(lib: Library) -> Any:
    names = ["/device:cpu:1", "device:cpu:1", "/device:gpu:0", "/Cpu:1", "Cpu:1", "/gpu:1"]
    tasks = ["/job:worker/task:1/cpu:0", "/job:worker/task:1/device:cpu:2", "/task:1/gpu"]
    return [lib.devices.canonicalize(name) for name in names + tasks]


@scenario("DEV-2")
def other_kinds_are_in_capitals(lib: Library) -> Any:
    names = "/device:Cpu:1", "/device:xla_cpu:0", "/device:cpu"
    return [attempt(lib.devices.canonicalize, name) for name in names]

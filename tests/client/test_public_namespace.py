"""What `import stratagem` offers, and what it costs."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stratagem
from stratagem_deploy.processes.process import import_path
from stratagem_proto.wire.status import STATUS_CODES


def test_the_namespace_is_what_it_says() -> None:
    imports = {"Any", "TYPE_CHECKING", "annotations", "import_module"}
    names = {*vars(stratagem), *stratagem._LATE}
    public = {name for name in names if not name.startswith("_")}
    public = public - imports | {"__version__"}
    assert list(stratagem.__all__) == sorted(public, key=_as_listed)
    assert set(dir(stratagem)) == public


def test_public_names_are_those_that_are_listed() -> None:
    """A name that goes breaks programs; one that comes stays for ever. Both are to be meant."""
    page = Path(__file__).with_name("public-names.txt")
    listed, public = set(page.read_text().splitlines()), set(_names("stratagem", stratagem, set()))
    came, went = sorted(public - listed), sorted(listed - public)
    assert not came, f"if these are to stay for ever, add them to {page.name}: {came}"
    assert not went, f"programs that use these break; else take them out of {page.name}: {went}"


def _names(prefix: str, owner: Any, seen: set[str]) -> Iterator[str]:
    for name in getattr(owner, "__all__", None) or filter(_is_public, dir(owner)):
        value, path = getattr(owner, name, None), f"{prefix}.{name}"
        if isinstance(value, ModuleType):
            parts = value.__name__.split(".")
            if parts[0] == "stratagem" and all(map(_is_public, parts)) and parts[-1] not in seen:
                seen.add(parts[-1])
                yield path
                yield from _names(path, value, seen)
            continue
        yield path
        if inspect.isclass(value) and value.__module__.startswith("stratagem"):
            ours = [base for base in value.__mro__ if base.__module__.startswith("stratagem")]
            for member in filter(_is_public, {each for base in ours for each in vars(base)}):
                yield f"{path}.{member}"


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _as_listed(name: str) -> tuple[int, str]:
    """Constants and classes before modules and functions, as linters sort."""
    return (not name[0].isupper(), name)


def test_public_objects_show_their_public_name() -> None:
    kept = {
        name: value.__module__
        for name in stratagem.__all__
        if not isinstance(value := getattr(stratagem, name), ModuleType | str)
    }
    assert {name for name, module in kept.items() if module != "stratagem"} == set()


def test_public_modules_are_those_of_their_names() -> None:
    modules = {
        name: value.__name__
        for name in stratagem.__all__
        if isinstance(value := getattr(stratagem, name), ModuleType)
    }
    assert {"cluster_resolver", "nn"} <= modules.keys()
    assert modules == {name: f"stratagem.{name}" for name in modules}


def test_every_error_is_public() -> None:
    errors = {cls.__name__ for cls in STATUS_CODES}
    assert errors <= set(stratagem.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'stratagem' has no attribute 'tpu'"):
        _ = stratagem.tpu


HEAVY = {
    "cloudpickle",
    "grpc",
    "pandas",
    "pydantic",
    "rich",
    "sklearn",
    "structlog",
    "tqdm",
    "typer",
}


# What only programs with servers use: names of modules, or how they begin.
OF_SERVERS = (
    "google.protobuf",
    "grpc",
    "stratagem._cluster",
    "stratagem._parameter_server",
    "stratagem._ps_client",
    "stratagem._tracing",
)


def printed_by(program: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=import_path(),
        capture_output=True,
        check=True,
        text=True,
    )
    return run.stdout.split()


TRAINING = """
strategy = stratagem.MirroredStrategy(["CPU:0"])
with strategy.scope():
    model = torch.nn.Linear(2, 1)
optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(model.parameters()))
def step(batch):
    model(batch).sum().backward()
    optimizer.step()
for batch in strategy.experimental_distribute_dataset([torch.ones(4, 2)]):
    strategy.run(step, args=(batch,))
strategy.state_dict()
"""

STAGES = {
    "torch": "import torch",
    "stratagem": "import stratagem",
    "training": TRAINING,
    "servers": "from stratagem import ParameterServerStrategy",
}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The modules that a fresh interpreter has after each of the stages."""
    program = "import sys\n" + "".join(
        f"{statements}\nprint(*sys.modules, ';')\n" for statements in STAGES.values()
    )
    *lists, _ = " ".join(printed_by(program)).split(";")
    return {stage: set(names.split()) for stage, names in zip(STAGES, lists, strict=True)}


def test_importing_loads_nothing_heavy_that_torch_does_not(
    loaded: dict[str, set[str]],
) -> None:
    added = {name.partition(".")[0] for name in loaded["stratagem"] - loaded["torch"]}
    assert "stratagem_proto" in added
    assert not added & HEAVY


def test_importing_loads_nothing_that_only_some_programs_use(
    loaded: dict[str, set[str]],
) -> None:
    unasked = (*OF_SERVERS, "stratagem._input.pipeline", "stratagem._checkpoints")
    assert {name for name in loaded["stratagem"] if name.startswith(unasked)} == set()


def test_training_in_one_process_loads_nothing_of_servers(
    loaded: dict[str, set[str]],
) -> None:
    assert "stratagem._input.pipeline" in loaded["training"]
    assert {name for name in loaded["training"] if name.startswith(OF_SERVERS)} == set()


def test_what_needs_grpc_is_loaded_when_it_is_asked_for(
    loaded: dict[str, set[str]],
) -> None:
    assert "grpc" in loaded["servers"]


@pytest.mark.full("what needs grpc is loaded late by another test")
def test_what_is_loaded_late_is_listed_and_found_by_its_public_name() -> None:
    stored = pickle.dumps(stratagem.MirroredStrategy)
    program = f"""
import stratagem, pickle
print(set(stratagem.__all__) <= set(dir(stratagem)))
print(stratagem.cluster_resolver.SimpleClusterResolver.__qualname__)
print(pickle.loads({stored!r}).__qualname__)
from stratagem import *
print(ParameterServerStrategy.__qualname__)
"""
    assert b"_strategies" not in stored
    assert printed_by(program) == [
        "True",
        "SimpleClusterResolver",
        "MirroredStrategy",
        "ParameterServerStrategy",
    ]


@pytest.mark.full("public objects show their names once they are asked for")
def test_classes_met_before_they_are_asked_for_show_their_public_name() -> None:
    program = """
from importlib import import_module
from stratagem import _LATE
for name, module in _LATE.items():
    if module.startswith("stratagem._"):
        print(getattr(import_module(module), name).__module__)
"""
    assert {*printed_by(program)} == {"stratagem"}

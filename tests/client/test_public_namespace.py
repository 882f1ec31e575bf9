"""What `import stratagem` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import stratagem
from stratagem_proto.status_codes import STATUS_CODES


def test_the_namespace_is_what_it_says() -> None:
    imports = {"Any", "TYPE_CHECKING", "annotations", "import_module"}
    public = {name for name in dir(stratagem) if not name.startswith("_")}
    public = public - imports | {"__version__"}
    assert list(stratagem.__all__) == sorted(public, key=_as_listed)


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


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has afterwards."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_importing_loads_nothing_heavy_that_torch_does_not() -> None:
    added = loaded_by("import stratagem") - loaded_by("import torch")
    assert "stratagem_proto" in added
    assert not added & HEAVY


def test_what_needs_grpc_is_loaded_when_it_is_asked_for() -> None:
    assert "grpc" in loaded_by("from stratagem import ParameterServerStrategy")
    assert "grpc" in loaded_by("from stratagem import *")

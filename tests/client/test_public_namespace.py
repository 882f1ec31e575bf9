"""What `import stratagem` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import stratagem
import stratagem_proto.errors


def test_the_namespace_is_what_it_says() -> None:
    public = {
        name
        for name, value in vars(stratagem).items()
        if not name.startswith("_") and name != "annotations"
    } | {"__version__"}
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
    errors = {cls.__name__ for cls in stratagem_proto.errors.STATUS_CODES}
    assert errors <= set(stratagem.__all__)


def test_importing_loads_nothing_heavy_that_torch_does_not() -> None:
    listing = "import sys; import {}; print(*sys.modules)"
    loaded = [
        subprocess.run(
            [sys.executable, "-c", listing.format(package)],
            env={"PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split()
        for package in ("torch", "stratagem")
    ]
    added = {name.partition(".")[0] for name in {*loaded[1]} - {*loaded[0]}}
    assert not added & {"pandas", "pydantic", "rich", "typer", "cloudpickle", "tqdm"}

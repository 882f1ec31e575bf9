"""Write the Python modules of every .proto beside it; with --check, only compare.

Run it after editing a .proto and commit what it writes: a clone then works in an editor and
installs without a compiler, and a review shows the generated change.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent

# By path, since the scripts of a virtual environment that is not activated are not on PATH.
PLUGINS = [
    Path(sys.executable).with_name(name) for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
]

Modules = dict[Path, str]
"""Source text by path, relative to the import root."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if any is stale")
    check = parser.parse_args().check
    fresh, present = compiled(), read(ROOT)
    stale = sorted({path.as_posix() for path, _ in fresh.items() ^ present.items()})
    if not check:
        replace(present, fresh)
    elif stale:
        raise SystemExit(f"not what the .proto files say: {', '.join(stale)}; run `make protos`")


def compiled() -> Modules:
    """Returns what the sources compile to, leaving the tree as it is."""
    sources = sorted(ROOT.rglob("*.proto"))
    # A source without a service would get _grpc modules with nothing in them.
    services = [source for source in sources if declares_service(source)]
    with tempfile.TemporaryDirectory() as out:
        run_protoc(sources, f"--python_out={out}", f"--mypy_out=quiet:{out}")
        run_protoc(services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")
        return read(Path(out))


def declares_service(source: Path) -> bool:
    lines = source.read_text(encoding="utf-8").splitlines()
    return any(line.startswith("service ") for line in lines)


def run_protoc(sources: list[Path], *outputs: str) -> None:
    if not sources:
        return
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    plugins = [f"--plugin={plugin}" for plugin in PLUGINS]
    command = ["protoc", *includes, *plugins, *outputs, *map(str, sources)]
    if protoc.main(command):
        raise SystemExit("protoc refused the sources; its reasons are above")


def read(root: Path) -> Modules:
    """Returns the generated modules and stubs under an import root."""
    return {
        path.relative_to(root): path.read_text(encoding="utf-8")
        for suffix in ("py", "pyi")
        for pattern in (f"*_pb2.{suffix}", f"*_pb2_grpc.{suffix}")
        for path in root.rglob(pattern)
    }


def replace(old: Modules, new: Modules) -> None:
    for path in old.keys() - new.keys():
        (ROOT / path).unlink()
    for path, text in new.items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

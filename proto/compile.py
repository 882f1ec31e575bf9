"""Write the Python modules of every .proto beside it; with --check, only compare.

Run it after editing a .proto and commit what it writes: a clone then works in an editor and
installs without a compiler, and a review shows the generated change.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent

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
    """Returns what the sources compile to, leaving the tree as it is.

    Services get no stubs: handlers and calls go by the descriptors of their methods.
    """
    sources = sorted(ROOT.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
        outputs = [f"--python_out={out}", f"--pyi_out={out}"]
        if protoc.main(["protoc", *includes, *outputs, *map(str, sources)]):
            raise SystemExit("protoc refused the sources; its reasons are above")
        return read(Path(out))


def read(root: Path) -> Modules:
    """Returns the generated modules and stubs under an import root."""
    return {
        path.relative_to(root): path.read_text(encoding="utf-8")
        for suffix in ("py", "pyi")
        for path in root.rglob(f"*_pb2.{suffix}")
    }


def replace(old: Modules, new: Modules) -> None:
    for path in old.keys() - new.keys():
        (ROOT / path).unlink()
    for path, text in new.items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

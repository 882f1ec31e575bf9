"""How much of the public namespace has types, by pyright.

python -m tests.publishing.public_types --least 95

Pyright looks at a wheel of the clone, as at that of a user: types that only a clone has do not
count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.publishing.distributions import built, copy_to, tracked


def main() -> None:
    """Print the share of public names with types; exit with 1 if it is too small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least", type=float, default=100.0, help="percent that are enough")
    least = parser.parse_args().least
    with tempfile.TemporaryDirectory() as folder:
        percent = share(verified(installed_in(Path(folder)), Path(folder)))
    print(f"{percent:.1f} % of the public names have types that are known")
    raise SystemExit(percent < least)


def installed_in(folder: Path) -> Path:
    """Return the interpreter of an environment with a wheel of the clone, and with our libraries.

    The libraries are those of the environment that this runs in, but the clone that is installed
    there is not seen: Python does not read the files beside libraries that say where it is.
    """
    wheel = built(copy_to(folder / "clone", tracked()), folder / "dist").wheel
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(packages), str(wheel)], check=True)
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "venv" / "bin" / "python"


def share(report: Mapping[str, Any]) -> float:
    """Return the percentage of names with types, and print those without, and why."""
    for symbol in report["symbols"]:
        said = "; ".join(each["message"] for each in symbol["diagnostics"])
        # Of a name that is partly known because of another one, pyright says nothing.
        if said and not symbol["isTypeKnown"]:
            print(f"{symbol['name']}: {said}")
    return float(100 * report["completenessScore"])


def verified(python: Path, folder: Path) -> Mapping[str, Any]:
    """Return what pyright says of the types of the package that an interpreter has.

    Args:
        python: The interpreter.
        folder: Where pyright runs, and finds no settings.
    """
    # It looks where the interpreter that it finds first does; with --pythonpath it finds no types.
    path = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    line = [sys.executable, "-m", "pyright", "--outputjson", "--ignoreexternal"]
    ended = subprocess.run(
        [*line, "--verifytypes", "stratagem"],
        cwd=folder,
        env=os.environ | path,
        stdout=subprocess.PIPE,
        check=False,
    )
    report: Mapping[str, Any] = json.loads(ended.stdout)["typeCompleteness"]
    return report


if __name__ == "__main__":
    main()

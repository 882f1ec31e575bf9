"""Keep the packages of a wheel for these tests: `python -m tests.releases.keep WHEEL`.

Without stubs, .proto files and the page of the dashboard, which no process loads here.
"""

from __future__ import annotations

import io
import lzma
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

FOLDER = Path(__file__).parent


def keep(wheel: Path) -> Path:
    """Write what a wheel has beside these tests, and return the file."""
    packed = io.BytesIO()
    with ZipFile(wheel) as files, tarfile.open(fileobj=packed, mode="w") as kept:
        for name in sorted(files.namelist()):
            if not (name.endswith((".pyi", ".proto")) or "/dashboard/page/" in name):
                entry = tarfile.TarInfo(name)
                entry.size = files.getinfo(name).file_size
                kept.addfile(entry, io.BytesIO(files.read(name)))
    file = FOLDER / f"stratagem-{wheel.name.split('-')[1]}.tar.xz"
    file.write_bytes(lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    return file


if __name__ == "__main__":
    print(keep(Path(sys.argv[1])))

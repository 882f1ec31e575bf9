"""Files with secrets, and who can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

# The folder of container engines for secrets, which all users of the container may read.
_MOUNTED = Path("/run/secrets")


def is_readable_by_others(path: Path) -> bool:
    """Return whether other users of this machine can read a file that they should not.

    Raises:
        OSError: There is no such file.
    """
    if _MOUNTED in path.absolute().parents or os.name != "posix":
        return False
    return bool(path.stat().st_mode & stat.S_IROTH)

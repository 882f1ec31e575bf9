"""Runs a script once it is the turn of this process to coordinate.

Usage: python -m stratagem_deploy.running.standing_by SCRIPT [ARGUMENT...], with `TF_CONFIG`.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback

from stratagem.coordinator import stand_by
from stratagem_deploy.processes.supervision import SUPERSEDED
from stratagem_proto.errors import CancelledError, SupersededError


def main(script: str) -> None:
    """Run a script whose arguments are those of this process."""
    # As when Python is given the script.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        with stand_by():
            runpy.run_path(script, run_name="__main__")
    except CancelledError:
        # The program has come to its end elsewhere.
        return
    except SupersededError:
        traceback.print_exc()
        raise SystemExit(SUPERSEDED) from None


if __name__ == "__main__":
    del sys.argv[0]
    main(sys.argv[0])

"""How a server process uses the machine."""

from __future__ import annotations

import gc
import os

from stratagem_proto.memory import keep_freed_memory


def tune() -> None:
    """Prepare this process for serving; call it before torch is imported.

    What the environment says already is left as it is.
    """
    # Threads of a kernel that is done would go on spinning for its next one, on cores that the
    # transfer needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Large tensors get huge pages, of which there are few to clear.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    keep_freed_memory()


def keep_what_is_loaded() -> None:
    """Have the garbage collector pass over all there is; call it after the imports.

    Modules stay as long as the process does and have some 300,000 objects. While the collector
    looks through them, nobody is served.
    """
    gc.freeze()

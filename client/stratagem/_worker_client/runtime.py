"""What this process runs in, as far as pickled functions depend on it."""

from __future__ import annotations

import sys

import cloudpickle
import torch

from stratagem._version import __version__
from stratagem_proto.v1.worker_pb2 import Runtime


def this_runtime() -> Runtime:
    """Return the versions of this process."""
    return Runtime(
        python="{}.{}".format(*sys.version_info),
        torch=torch.__version__.partition("+")[0],
        cloudpickle=cloudpickle.__version__,
        stratagem=__version__,
    )

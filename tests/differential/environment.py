"""Environment variables, for a while."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Scope in which variables have values; afterwards all are as before."""
    with patch.dict(os.environ, variables):
        yield


@contextmanager
def tf_config(**content: Any) -> Iterator[None]:
    """Scope in which TF_CONFIG has a content."""
    with environment(TF_CONFIG=json.dumps(content)):
        yield

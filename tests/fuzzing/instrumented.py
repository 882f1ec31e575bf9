"""The decoders, with code that tells which way an input takes through them."""

from __future__ import annotations

import importlib
from typing import Any

import atheris

_OURS = ["stratagem_proto", "stratagem_rpc", "stratagem_storage", "stratagem_psserver"]


def instrumented(module: str) -> Any:
    """Load a module of this folder, with what it loads of ours that is not loaded yet."""
    with atheris.instrument_imports(include=_OURS, enable_loader_override=False):
        return importlib.import_module(f"tests.fuzzing.{module}")

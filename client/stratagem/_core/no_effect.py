"""Settings of TensorFlow's that are accepted and do nothing here."""

from __future__ import annotations

import warnings

warned: set[str] = set()
"""The settings that this process has been told about."""


def warn_of_no_effect(setting: str, reason: str) -> None:
    """Say, once in a process, that a setting which was set does nothing.

    Args:
        setting: Its name.
        reason: Why, and what to do instead if anything; ends the sentence.
    """
    if setting in warned:
        return
    warned.add(setting)
    warnings.warn(f"{setting} has no effect: {reason}", stacklevel=3)

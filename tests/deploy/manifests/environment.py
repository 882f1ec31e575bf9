"""The variables of a container, as Kubernetes makes them of its manifest."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tests.deploy.manifests.rendering import Manifest

_REFERENCE = re.compile(r"\$(\$\([^)]*\)|\(([^)]+)\))")


def environment(
    container: Manifest,
    fields: Mapping[str, str],
    texts: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """The variables of a container.

    Args:
        container: Its manifest.
        fields: What is known of its pod, by path, as in "metadata.name".
        texts: The texts of ConfigMaps by their name and key.
    """
    variables: dict[str, str] = {}
    for entry in container.get("env", ()):
        if "value" in entry:
            value = expanded(entry["value"], variables)
        else:
            value = _taken(entry["valueFrom"], container, fields, texts)
        variables[entry["name"]] = value
    return variables


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """A text with the values of the variables that it names as in "$(NAME)".

    Of others it has the names still, and "$$(NAME)" is the text "$(NAME)".
    """

    def value(found: re.Match[str]) -> str:
        return variables.get(found[2], found[0]) if found[2] else found[1]

    return _REFERENCE.sub(value, text)


def _taken(
    source: Manifest,
    container: Manifest,
    fields: Mapping[str, str],
    texts: Mapping[str, Mapping[str, str]],
) -> str:
    ((kind, reference),) = source.items()
    if kind == "fieldRef":
        return fields[reference["fieldPath"]]
    if kind == "configMapKeyRef":
        return texts[reference["name"]][reference["key"]]
    assert reference == {"resource": "limits.cpu"}, f"not known here: {source}"
    return str(cores(container["resources"]["limits"]["cpu"]))


def cores(quantity: Any) -> int:
    """Whole cores of a quantity such as "500m", as a variable has them."""
    text = str(quantity)
    milli = text.endswith("m")
    return math.ceil(float(text.removesuffix("m")) / (1000 if milli else 1))

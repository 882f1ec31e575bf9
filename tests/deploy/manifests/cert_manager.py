"""Certificates and issuers are such as cert-manager takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from tests.deploy.manifests.rendering import Manifest

_DURATION = re.compile(r"([0-9]+(h|m|s))+")


def _duration(text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise ValueError("a duration is like 2160h, and has no days")
    return text


Duration = Annotated[str, AfterValidator(_duration)]


class _Fields(BaseModel):
    """Fields that cert-manager knows, of which manifests may have no others."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _IssuerRef(_Fields):
    name: str
    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"
    group: str = "cert-manager.io"


class _PrivateKey(_Fields):
    algorithm: Literal["RSA", "ECDSA", "Ed25519"] = "RSA"
    encoding: Literal["PKCS1", "PKCS8"] = "PKCS1"
    size: int = 0
    rotation_policy: Literal["Always", "Never"] = "Never"


class _CertificateSpec(_Fields):
    secret_name: str
    issuer_ref: _IssuerRef
    common_name: str = ""
    uris: list[str] = []
    dns_names: list[str] = []
    duration: Duration = "2160h"
    renew_before: Duration = "720h"
    is_c_a: bool = False
    private_key: _PrivateKey = _PrivateKey()
    usages: list[Literal["digital signature", "server auth", "client auth", "cert sign"]] = []

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=lambda name: "isCA" if name == "is_c_a" else to_camel(name),
    )


class _Authority(_Fields):
    secret_name: str


class _IssuerSpec(_Fields):
    ca: _Authority | None = None
    self_signed: dict[str, Any] | None = None


SPECS: Mapping[str, type[_Fields]] = {"Certificate": _CertificateSpec, "Issuer": _IssuerSpec}
"""What manifests of a kind have in their `spec`."""


def problems(manifest: Manifest) -> Iterator[str]:
    """What cert-manager would refuse or ignore."""
    if manifest["apiVersion"] != "cert-manager.io/v1":
        yield f"apiVersion is {manifest['apiVersion']}, not cert-manager.io/v1"
    if wrong := manifest.keys() - {"apiVersion", "kind", "metadata", "spec"}:
        yield f"{sorted(wrong)} are no fields"
    try:
        SPECS[manifest["kind"]].model_validate(manifest["spec"])
    except ValidationError as error:
        yield str(error)

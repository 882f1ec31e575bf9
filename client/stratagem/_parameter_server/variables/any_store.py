"""What variables on servers ask of the store that keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from stratagem._ps_client.group import ServerGroup
from stratagem._ps_client.requests.variables import Writing


class AnyStore(Protocol):
    """A `RemoteStore`, which is made of pushes, and they of variables.

    Attributes:
        servers: Sessions with all servers.
    """

    servers: ServerGroup

    def refresh(self, variables: Iterable[Any], training: bool = False) -> None: ...

    def write_behind(self, writings: Mapping[Any, Writing]) -> None: ...

    def write(self, writings: Mapping[Any, Writing]) -> dict[str, int]: ...

    def rows(
        self, variables: Sequence[Any], rows: Sequence[torch.Tensor], training: bool = False
    ) -> list[torch.Tensor]: ...

    def keys(self, part: Any, limit: int) -> Iterator[torch.Tensor]: ...

"""The modes of torch that belong to a thread, carried to another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True)
class _Autocast:
    device_type: str
    dtype: torch.dtype
    enabled: bool


@dataclass(frozen=True)
class TorchState:
    """Gradient recording, inference mode and autocast of one thread.

    The default dtype needs no carrying: torch keeps it per process.
    """

    grad_enabled: bool
    inference_mode: bool
    autocasts: tuple[_Autocast, ...]
    autocast_cache: bool

    @classmethod
    def capture(cls) -> TorchState:
        """Return the state of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(
                _Autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
                for kind in _DEVICE_TYPES
            ),
            torch.is_autocast_cache_enabled(),
        )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Scope in which this thread has that state."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for autocast in self.autocasts:
                # A disabled autocast for an absent device type would still warn.
                if autocast.enabled != torch.is_autocast_enabled(autocast.device_type):
                    stack.enter_context(
                        torch.autocast(
                            autocast.device_type,
                            dtype=autocast.dtype,
                            enabled=autocast.enabled,
                            cache_enabled=self.autocast_cache,
                        )
                    )
            yield

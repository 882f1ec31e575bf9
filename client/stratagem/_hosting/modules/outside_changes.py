"""What a program does between runs to the gradient and the hooks of a parameter.

It then has the parameter itself, on which the first replica works. What it does there is meant for
all replicas, and the others have leaves of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

Leaves = Sequence[Parameter]
"""The parameter, and the leaves of the other replicas."""


class HookOfParameter:
    """Base class of hooks that are for the parameter alone."""


class OutsideChanges:
    """Carries what was done to one parameter between runs to the leaves of the other replicas.

    What replicas do in a run stays with each of them.
    """

    def __init__(self) -> None:
        self._gradient: tuple[ref[Tensor], int] | None = None
        self._changed: ref[Tensor] | None = None
        self._hooks = (
            _HookCopies("_backward_hooks", Tensor.register_hook),
            _HookCopies("_post_accumulate_grad_hooks", Tensor.register_post_accumulate_grad_hook),
        )

    def note(self, leaves: Leaves) -> None:
        """Take gradient and hooks as they are for the work of the replicas."""
        self._note_gradient(leaves[0])
        for hooks in self._hooks:
            hooks.note(leaves[0])

    def carry(self, leaves: Leaves) -> None:
        """Carry to the other leaves what can be, before replicas run."""
        first, *others = leaves
        for leaf in others:
            leaf.requires_grad_(first.requires_grad)
        for hooks in self._hooks:
            hooks.carry(first, others)
        gradient = first.grad
        if gradient is None or not self._is_noted(gradient):
            self._carry_gradient(gradient, others)
        self._note_gradient(first)

    def gradient_changed(self, parameter: Parameter) -> bool:
        """Return whether its gradient was changed in a way that the other leaves do not show."""
        gradient = parameter.grad
        return gradient is not None and self._changed is not None and self._changed() is gradient

    def _note_gradient(self, first: Parameter) -> None:
        gradient = first.grad
        self._gradient = None if gradient is None else (ref(gradient), gradient._version)

    def _is_noted(self, gradient: Tensor) -> bool:
        if self._gradient is None:
            return False
        noted, version = self._gradient
        return noted() is gradient and gradient._version == version

    def _carry_gradient(self, gradient: Tensor | None, others: Leaves) -> None:
        if gradient is None:
            if self._gradient is not None:
                for leaf in others:
                    leaf.grad = None
        elif _is_zero(gradient):
            for leaf in others:
                leaf.grad = None if leaf.grad is None else torch.zeros_like(leaf.grad)
        else:
            self._changed = ref(gradient)


class _HookCopies:
    """The hooks of one kind that the other leaves have from the parameter.

    Args:
        kind: The attribute of a tensor with its hooks of the kind by number, or None.
        register: Adds one to a tensor.
    """

    def __init__(self, kind: str, register: Callable[[Tensor, Any], RemovableHandle]) -> None:
        self._kind, self._register = kind, register
        # By the number of the hook.
        self._copies: dict[int, list[RemovableHandle]] = {}
        # A frozen leaf takes none.
        self._waiting: set[int] = set()
        self._of_replica: set[int] = set()

    def note(self, first: Parameter) -> None:
        """Take those that came since `carry` for the first replica's own."""
        hooks = self._of(first)
        if hooks or self._of_replica:
            self._of_replica = hooks.keys() - self._copies.keys() - self._waiting

    def carry(self, first: Parameter, others: Leaves) -> None:
        """Give the others those that came outside of runs; take what is there no more."""
        hooks = self._of(first)
        for number in self._copies.keys() - hooks.keys():
            for handle in self._copies.pop(number):
                handle.remove()
        self._waiting = hooks.keys() - self._copies.keys() - self._of_replica
        if not first.requires_grad:
            return
        while self._waiting:
            number = self._waiting.pop()
            hook = hooks[number]
            if not isinstance(hook, HookOfParameter):
                self._copies[number] = [self._register(leaf, hook) for leaf in others]

    def _of(self, first: Parameter) -> Mapping[int, Any]:
        hooks: Mapping[int, Any] | None = getattr(first, self._kind)
        return hooks or {}


def _is_zero(gradient: Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return not values.any()

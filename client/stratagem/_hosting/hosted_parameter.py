"""Parameters of plain modules whose values belong to a strategy's variables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from stratagem._core.contexts import current_replica_id
from stratagem._core.variables import Variable
from stratagem._hosting.torch_patches import watch_data

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
            return
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        if values.any():
            self._changed = ref(gradient)
            return
        for leaf in others:
            leaf.grad = None if leaf.grad is None else torch.zeros_like(leaf.grad)


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


# More of them are looked through before the next step does.
_MOST_NEW = 64


class DataViews:
    """Tensors through which a parameter may be written unseen."""

    def __init__(self) -> None:
        # Those that nobody else may have any more tell what was done through them.
        self._new: list[torch.Tensor] = []
        self._known: list[tuple[ref[torch.Tensor], int]] = []
        self._written = False

    def add(self, data: torch.Tensor) -> None:
        """Take in a tensor that nobody has written through yet."""
        if len(self._new) >= _MOST_NEW:
            self._look()
        self._new.append(data)

    def were_written(self) -> bool:
        """Return whether one has been written since they were accepted."""
        self._look()
        return self._written

    def accept(self) -> None:
        """Take what was written for known."""
        self._look()
        self._written = False

    def _look(self) -> None:
        """Note what was written, and forget what nobody has any more."""
        each = [(one, at) for data, at in self._known if (one := data()) is not None]
        each += [(data, 0) for data in self._new]
        self._written |= any([data._version != at for data, at in each])
        known = [(ref(data), data._version) for data, _ in each]
        each.clear()
        self._new.clear()
        self._known = [pair for pair in known if pair[0]() is not None]


_hosted: WeakValueDictionary[int, HostedParameter] = WeakValueDictionary()


def hosted_parameter(tensor: torch.Tensor) -> HostedParameter | None:
    """Return what hosts a parameter, or a replica's leaf of it; None if nothing.

    The lookup spans all strategies of the process.
    """
    # Everything that is registered is kept alive by its entry, so that ids are not used twice.
    return _hosted.get(id(tensor))


class _Host(OrderedDict[str, object]):
    """What a parameter has of the `HostedParameter` of it, which so lives as long as it does.

    What PyTorch saves of a parameter has its attributes. A strategy is no part of that, and an
    empty dictionary is what `torch.load` takes with `weights_only`.
    """

    def __init__(self, hosted: HostedParameter) -> None:
        super().__init__()
        self.hosted = hosted

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()


class _Mark(NamedTuple):
    """What shows that a parameter was touched since it was last accepted."""

    address: int
    version: int
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    requires_grad: bool

    def shows_write_since(self, earlier: _Mark) -> bool:
        """Whether the values may differ from those of the `earlier` mark.

        Freezing does not change them, nor does moving to another device, which leaves the version
        as it is.
        """
        moved = self.device != earlier.device
        unchanged = earlier._replace(
            requires_grad=self.requires_grad,
            device=self.device,
            address=self.address if moved else earlier.address,
        )
        return self != unchanged


# What is in a `_Mark` behind the address. Each parameter is looked at three times in a step, which
# is worth neither a `_Mark` nor a function of our own.
_state_of = attrgetter("_version", "dtype", "shape", "device", "requires_grad")
_version_of = attrgetter("_version")


class HostedParameter:
    """A module's parameter that follows a variable of a strategy.

    The first replica of this process works on the user's own parameter, each other replica on a
    leaf of its own, so that gradients stay apart. Leaves that are made here share the storage of
    the parameter if they are on its device.

    The parameter owns it: both are garbage once nobody refers to the parameter any more, unless
    something keeps the variable.

    Args:
        variable: The variable that has the value.
        parameter: The user's parameter, equal to the variable.
        devices: The device of each replica of this process.
        others: Leaves with storage of their own for the replicas after the first.

    Attributes:
        variable: The variable that has the value.
        leaves: The parameter as each replica sees it.
        outside_changes: What the program did to its gradient and its hooks between runs.
        is_here: Whether the parameter has the values itself.
    """

    is_here = True

    def __init__(
        self,
        variable: Variable,
        parameter: Parameter,
        devices: Sequence[torch.device],
        others: Sequence[Parameter] | None = None,
    ) -> None:
        self.variable = variable
        self._separate, self._versions = others is not None, list[int]()
        if others is None:
            others = [_leaf(parameter, device) for device in devices[1:]]
        self._owners: list[tuple[ref[nn.Module], str]] = []
        self._replaced: list[Parameter] = []
        self.leaves: tuple[nn.Parameter, ...] = (parameter, *others)
        self.outside_changes = OutsideChanges()
        # Each parameter is looked at three times in a step; few give out their data.
        self._lent: DataViews | None = None
        for leaf in self.leaves:
            self._belong_to(leaf)
        watch_data(_lend)
        self.accept()
        # Of the variable's tensor, when the parameter last took over its value.
        self._followed = (0, 0)

    def _belong_to(self, leaf: Parameter) -> None:
        _hosted[id(leaf)] = self
        leaf._stratagem_host = _Host(self)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Leave the parameter and all leaves to the program, as tensors of no strategy."""
        for leaf in (*self.leaves, *self._replaced):
            _hosted.pop(id(leaf), None)
            leaf.__dict__.pop("_stratagem_host", None)
        for owner, key in self._owners:
            module = owner()
            if module is not None and key in module._parameters:
                # Where replicas saw leaves of their own, all see the parameter now.
                module._parameters[key] = module._parameters[key]

    @property
    def name(self) -> str:
        """The name of the variable."""
        return self.variable.name

    @property
    def parameter(self) -> Parameter:
        """The user's parameter."""
        return self.leaves[0]

    def leaf(self) -> Parameter:
        """Return what the replica that this thread runs works on.

        Outside of a replica that is the user's parameter.
        """
        return self.leaves[current_replica_id() or 0]

    def leaf_in(self, replica: int) -> Parameter:
        """Return what a replica works on; see `leaf`."""
        return self.leaves[replica]

    def add_owner(self, module: nn.Module, key: str) -> None:
        """Note that `module` has the parameter as `key`."""
        self._owners.append((ref(module), key))

    def owners(self) -> list[nn.Module]:
        """Return the living modules that have the parameter."""
        found = [(module(), key) for module, key in self._owners]
        return [one for one, key in found if one is not None and key in one._parameters]

    def write(self, value: torch.Tensor) -> None:
        """Put a newer value of the variable into the parameter, in place.

        Not to be called while a replica runs: it would invalidate what autograd saved in forward.

        Args:
            value: Tensor of the parameter's shape and dtype, on any device.
        """
        with torch.no_grad():
            self.parameter.copy_(value)
        self.accept_everywhere()

    def follow_variable(self) -> None:
        """Take over what was written into the variable since this was called last.

        Its tensor may be the parameter itself. Otherwise as for `write`.
        """
        value = self.variable.value()
        if value is self.parameter:
            self.accept_everywhere()
            return
        state = value.data_ptr(), value._version
        if state != self._followed:
            self.write(value)
            self._followed = state

    def accept_everywhere(self) -> None:
        """Accept the parameter as it is now: equal to the variable.

        Leaves of the other replicas follow it.
        """
        for leaf in self.leaves[1:]:
            _follow(leaf, self.leaves[0], self._separate)
        self.accept()

    def accept(self) -> None:
        """Note that all leaves were written alike, and are equal as they are."""
        parameter = self.leaves[0]
        self._address, self._state = parameter.data_ptr(), _state_of(parameter)
        if self._separate:
            self._versions = [*map(_version_of, self.leaves)]
        if self._lent is not None:
            self._lent.accept()

    def lend(self, data: torch.Tensor) -> None:
        """Take note that the user got the parameter's `.data`."""
        self._lent = self._lent or DataViews()
        self._lent.add(data)

    def written_locally(self) -> bool:
        """Return whether the user wrote the parameter since it was last accepted.

        Writes by numpy to the same storage cannot be seen. Where the user put another parameter in
        its place (`load_state_dict(assign=True)`), that one is hosted from now on, and counts as
        written.
        """
        if self._lent is not None and self._lent.were_written():
            return True
        parameter = self.leaves[0]
        for owner, key in self._owners:
            module = owner()
            # Not what the current replica sees, but what is stored; nearly always the parameter.
            if module is None or dict.get(module._parameters, key) is not parameter:
                for replacement in self._replacements():
                    self._replace(replacement)
                    return True
                break
        address, state = parameter.data_ptr(), _state_of(parameter)
        if address == self._address and state == self._state:
            return False
        earlier = _Mark(self._address, *self._state)
        if _Mark(address, *state).shows_write_since(earlier):
            return True
        self.accept_everywhere()
        return False

    def was_written(self, since_replica: int = 0) -> bool:
        """Return whether leaves with storage of their own were written since they were accepted.

        Args:
            since_replica: Leaves of replicas before this one do not count.
        """
        versions = [*map(_version_of, self.leaves)]
        return versions[since_replica:] != self._versions[since_replica:]

    def _replacements(self) -> Iterator[Parameter]:
        for owner, key in self._owners:
            module = owner()
            stored = module and dict.get(module._parameters, key)
            if isinstance(stored, Parameter) and hosted_parameter(stored) is None:
                yield stored

    def _replace(self, parameter: Parameter) -> None:
        # Optimizers may still hold the old one, and have to find this entry by it.
        self._replaced.append(self.parameter)
        self.leaves = (parameter, *self.leaves[1:])
        self._belong_to(parameter)
        for owner, key in self._owners:
            module = owner()
            if module is not None and key in module._parameters:
                module._parameters[key] = parameter


def _lend(parameter: Parameter, data: torch.Tensor) -> None:
    hosted = hosted_parameter(parameter)
    if hosted is not None and hosted.parameter is parameter:
        hosted.lend(data)


def _leaf(parameter: Parameter, device: torch.device) -> Parameter:
    # A detached alias shares the version counter too, so that a write through it is seen as one to
    # the parameter.
    return Parameter(parameter.detach().to(device), parameter.requires_grad)


def _follow(leaf: Parameter, parameter: Parameter, separate: bool) -> None:
    leaf.requires_grad_(parameter.requires_grad)
    if leaf.dtype != parameter.dtype or leaf.shape != parameter.shape:
        leaf.grad = None
        leaf.data = parameter.detach().to(leaf.device, copy=separate)
    elif separate or leaf.device != parameter.device:
        with torch.no_grad():
            leaf.copy_(parameter)
    elif leaf.data_ptr() != parameter.data_ptr():
        leaf.data = parameter.detach()

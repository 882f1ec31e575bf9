"""Making the parameters of plain modules variables of a strategy."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from stratagem._core.contexts import cross_replica, current_replica_id
from stratagem._core.names import UniqueNames, form_of, labels_of
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.other_steps import OpenScope, require_untrained
from stratagem._hosting.replica_views import Owner, ParameterRegistry
from stratagem._hosting.torch_patches import ModuleWatch
from stratagem_proto.errors import CancelledError, ContextError

_STRUCTURE_BYTES = 8


def keep_fresh(modules: Iterable[nn.Module]) -> None:
    """Let `state_dict()` of these modules have the newest values.

    Parameters follow their variables when replicas start. What is saved after the last step would
    otherwise be one step behind.
    """
    for module in modules:
        if refresh_first not in module._state_dict_pre_hooks.values():
            module.register_state_dict_pre_hook(refresh_first)


def refresh_first(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """State-dict pre-hook; a plain function, so that modules pickle and copy.

    In a replica the values stay those that it works with; so do they once the strategy is closed,
    and in a copy, which is no business of a strategy.
    """
    # Parts of the module come with a prefix, after the whole has been refreshed.
    if prefix or current_replica_id() is not None:
        return
    hosted = next(filter(None, map(hosted_parameter, module.parameters())), None)
    if hosted is None:
        return
    strategy: Any = hosted.variable.distribute_strategy
    with suppress(CancelledError), cross_replica(strategy):
        strategy.extended._before_replicas()


@dataclass(frozen=True)
class Adoption:
    """A parameter that is to become a variable.

    Attributes:
        name: Name of the variable, as in `named_parameters()` of its root module, after the scope's
            prefix and with a suffix if it was taken.
        parameter: The user's parameter.
        owners: Where modules have it; tied parameters have several.
        module_path: Class of the root module and path within it, by which people recognise the
            module: "Recommender.users".
        root: The module that no other one contains; None if it is elsewhere.
    """

    name: str
    parameter: Parameter
    owners: tuple[Owner, ...]
    module_path: str
    root: nn.Module | None = None


class ModuleAdopter:
    """Adopts the modules that are built in one strategy's scopes.

    Args:
        names: The names taken in the strategy.
        registry: The parameters that the strategy hosts.
        host: Makes variables of parameters: adds each to the registry. All workers call it with
            equal names in the same order.
        host_buffers: Takes care of the buffers of modules.
        prepare: Makes another kind of parameter of one that is to be adopted, in its place.

    Attributes:
        buffers: The buffers of the modules by name.
    """

    def __init__(
        self,
        names: UniqueNames,
        registry: ParameterRegistry,
        host: Callable[[Sequence[Adoption]], None],
        host_buffers: Callable[[Sequence[nn.Module]], None],
        prepare: Callable[[Adoption], None],
    ) -> None:
        self._names = names
        self._registry = registry
        self._host = host
        self._host_buffers = host_buffers
        self._prepare = prepare
        self.buffers: NamedBuffers = NamedBuffers(names)
        # By thread: a scope is open in one thread only.
        self._open: dict[int, tuple[ModuleWatch, str]] = {}
        self._lazy: list[Adoption] = []
        # By id: modules may define equality.
        self._adopted: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()

    @contextmanager
    def watching(self, prefix: str | None, scope: OpenScope | None = None) -> Iterator[None]:
        """Scope whose modules are adopted at its end, unless it fails.

        Args:
            prefix: Put in front of the names, with a "/" between.
            scope: Watches over the parameters of the modules until then.
        """
        thread = threading.get_ident()
        with ModuleWatch(None if scope is None else scope.watch) as watch:
            self._open[thread] = watch, f"{prefix}/" if prefix else ""
            try:
                yield
                self.adopt()
            finally:
                del self._open[thread]
                if scope is not None:
                    scope.is_open = False

    def adopt(self) -> None:
        """Adopt what this thread has built in its open scope so far.

        Lazy modules get their names now, and are hosted once they know their
        shapes: before their first forward, or when this is called after it.

        Raises:
            ContextError: A module belongs to another strategy.
        """
        if not (self._open or self._lazy):
            return
        found = self._found_in_scope()
        for adoption in found:
            if is_lazy(adoption.parameter):
                self._await(adoption)
        # Lazy ones of earlier calls may have got their shapes; those of this one have none yet.
        ready = [one for one in [*self._lazy, *found] if not is_lazy(one.parameter)]
        self._lazy = [one for one in self._lazy if is_lazy(one.parameter)]
        if ready:
            self._host(ready)

    def take(self, module: nn.Module) -> None:
        """Take a module for one that this thread has built in its open scope."""
        watch, _ = self._open[threading.get_ident()]
        watch.see(module)

    def reserves(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter is lazy and will be hosted."""
        return any(adoption.parameter is parameter for adoption in self._lazy)

    def has_adopted(self, module: nn.Module) -> bool:
        """Return whether a module was built in a scope, by itself or in another."""
        return self._adopted.get(id(module)) is module

    def leave(self, modules: Sequence[nn.Module]) -> list[str]:
        """Leave modules to the program; return the names that their buffers had."""
        for module in modules:
            if self.has_adopted(module):
                del self._adopted[id(module)]
        return self.buffers.remove(modules)

    def _found_in_scope(self) -> list[Adoption]:
        watch, prefix = self._open.get(threading.get_ident(), (None, ""))
        if not watch:
            return []
        # Which roots there are must not depend on when cycles are collected: all workers have to
        # come to the same names.
        gc.collect()
        roots = watch.drain()
        parts = [part for root in roots for part in root.modules()]
        keep_fresh(parts)
        self._adopted.update((id(module), module) for module in parts)
        self.buffers.add(prefix, roots)
        self._host_buffers(roots)
        fresh = self._new(roots)
        structures, labels = _structures(fresh), labels_of(roots)
        named = [self._named(prefix, adoption) for adoption in fresh]
        for adoption in named:
            key = id(adoption.root)
            form = _form(adoption.parameter)
            self._names.describe(adoption.name, form, structures[key], labels.get(key, ""))
        if named:
            self._names.end_batch()
        return named

    def _new(self, roots: Iterable[nn.Module]) -> list[Adoption]:
        fresh = []
        for adoption in _parameters_of(roots):
            hosted = hosted_parameter(adoption.parameter)
            if hosted is None:
                require_untrained(adoption.parameter)
                if not self.reserves(adoption.parameter):
                    fresh.append(adoption)
            elif any(hosted is own for own in self._registry):
                self._registry.tie(hosted, adoption.owners)
            else:
                raise ContextError(
                    f"Mixing different tf.distribute.Strategy objects: "
                    f"{adoption.name!r} of {adoption.module_path} is "
                    f"{hosted.name!r} of another strategy; build the module anew"
                )
        return fresh

    def _named(self, prefix: str, adoption: Adoption) -> Adoption:
        self._prepare(adoption)
        name = self._names.choose(prefix + adoption.name)
        self._names.record(name, adoption.parameter)
        return replace(adoption, name=name)

    def _await(self, adoption: Adoption) -> None:
        self._lazy.append(adoption)
        for module, _ in adoption.owners:
            hook = BeforeFirstForward(self.adopt)
            hook.handle = module.register_forward_pre_hook(hook)


class BeforeFirstForward:
    """Forward pre-hook of a lazy module; comes after torch has given it its shape.

    A copy of the module is no business of the strategy, so a copied hook does nothing.
    """

    def __init__(self, adopt: Callable[[], None] | None = None) -> None:
        self._adopt = adopt
        self.handle: Any = None

    def __call__(self, module: nn.Module, args: object) -> None:
        if self._adopt is not None:
            self.handle.remove()
            self._adopt()

    def __reduce__(self) -> tuple[Any, ...]:
        return BeforeFirstForward, ()


def _parameters_of(roots: Iterable[nn.Module]) -> list[Adoption]:
    """The parameters of modules, each once, under its first name."""
    found: dict[int, Adoption] = {}
    for root in roots:
        for path, module in root.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is None:
                    continue
                owner, first = (module, key), found.get(id(parameter))
                if first is not None:
                    found[id(parameter)] = replace(first, owners=(*first.owners, owner))
                    continue
                name = f"{path}.{key}" if path else key
                place = f"{type(root).__name__}.{path}" if path else type(root).__name__
                found[id(parameter)] = Adoption(name, parameter, (owner,), place, root)
    return list(found.values())


def _structures(adoptions: Iterable[Adoption]) -> dict[int, str]:
    """Return what tells roots of one class and size from others, by their ids."""
    found: dict[int, Any] = {}
    for adoption in adoptions:
        digest = found.setdefault(id(adoption.root), blake2b(digest_size=_STRUCTURE_BYTES))
        digest.update(f"{adoption.module_path} {adoption.name} ".encode(errors="backslashreplace"))
        digest.update(f"{_form(adoption.parameter)}\n".encode())
    return {key: digest.hexdigest() for key, digest in found.items()}


def _form(parameter: Parameter) -> str:
    return "lazy" if is_lazy(parameter) else form_of(parameter.dtype, parameter.shape)


class NamedBuffers:
    """The buffers that modules have in their `state_dict()`, while the modules live.

    Args:
        names: The names taken in the strategy.
    """

    def __init__(self, names: UniqueNames) -> None:
        self._names = names
        # By id of the module: modules may define equality.
        self._found: dict[tuple[int, str], tuple[ref[nn.Module], str]] = {}

    def add(self, prefix: str, roots: Iterable[nn.Module]) -> None:
        """Name the buffers of modules and their parts that have no name yet.

        Args:
            prefix: Put in front of the names.
            roots: The modules.
        """
        for root in roots:
            for path, module in root.named_modules():
                for key in module._buffers:
                    if key not in module._non_persistent_buffers_set:
                        name = f"{path}.{key}" if path else key
                        self._add(prefix + name, module, key)

    def _add(self, wanted: str, module: nn.Module, key: str) -> None:
        known = self._found.get((id(module), key))
        if known is None or known[0]() is not module:
            name = self._names.choose(wanted)
            self._names.record(name, module)
            self._found = {at: one for at, one in self._found.items() if one[0]() is not None}
            self._found[id(module), key] = ref(module), name

    def remove(self, modules: Iterable[nn.Module]) -> list[str]:
        """Have no names for the buffers of modules any more; return those that they had."""
        gone = {id(module) for module in modules}
        left = [at for at, (owner, _) in self._found.items() if at[0] in gone and owner()]
        return [self._found.pop(at)[1] for at in left]

    def modules(self) -> list[nn.Module]:
        """Return the living modules that have some, in the order of their naming."""
        found = [owner() for owner, _ in self._found.values()]
        living = {id(module): module for module in found if module is not None}
        return [*living.values()]

    def owners(self) -> Iterator[tuple[str, nn.Module, str]]:
        """Yield name, module and key of each buffer that has contents."""
        for (_, key), (owner, name) in list(self._found.items()):
            module = owner()
            buffer = None if module is None else module._buffers.get(key)
            if module is not None and buffer is not None and not is_lazy(buffer):
                yield name, module, key

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and tensor of each buffer that has contents."""
        for name, module, key in self.owners():
            buffer = module._buffers[key]
            assert buffer is not None
            yield name, buffer

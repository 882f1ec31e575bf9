"""Dense parameters that workers all-reduce, and their optimizer, beside tables on servers."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, overload

import safetensors.torch
import torch
from torch.optim import Optimizer

from stratagem._core.contexts import entered
from stratagem._core.variables import Variable
from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.inner_state import stepped_copy
from stratagem._hosting.local_steps import OwnSteps, hosting_of_own, lent, parameters_of
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._hosting.wrapped_optimizer import require_fresh
from stratagem._hybrid.group import DenseGroup, LostGroupError, Member
from stratagem._parameter_server.loaded_values import carry
from stratagem._parameter_server.remote_hosting import RemoteHosting
from stratagem._parameter_server.variables.variable import RemoteVariable
from stratagem._ps_client.requests.variables import Writing
from stratagem_proto.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from stratagem_proto.v1.variable_requests_pb2 import ASSIGN_MODE_SET

_LOG = logging.getLogger("stratagem")

# Workers that all wait for others reduce nothing, so often.
_PAUSE_SECONDS = 0.02

_BEHIND = (
    "all workers were lost, and dense parameters are on the servers as they were saved last, while "
    "tables have what was trained since; make the HybridOptimizer before resume(), which goes back "
    "to the last checkpoint with both"
)

_PROGRESS = "progress"
_LENGTH_BYTES = 8
# Runs may go on with another number of workers.
_MOST_WORKERS = 1_000


class _Dense:
    """The dense parameters of this worker, their optimizer's state, and how far they are.

    Attributes:
        optimizer: Steps them in this worker.
        parameters: In the order of the optimizer.
        step: How many steps they have taken.
        counted: By number of the worker: how many of its gradients are in them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.parameters = parameters_of(optimizer)
        self.optimizer = optimizer
        self.step, self.counted = 0, [0] * _MOST_WORKERS
        try:
            stepped = stepped_copy(optimizer)
        except Exception as error:
            raise InvalidArgumentError(
                f"{type(optimizer).__name__} cannot step by gradients alone: {error}; give the "
                "dense part an optimizer that can, such as those of torch.optim but for LBFGS"
            ) from error
        # By name in what is packed: the types of what is no tensor.
        self._numbers: dict[str, type[int | float]] = {}
        self.room = _LENGTH_BYTES + len(self._packed(stepped))
        # Some have state from the beginning.
        self._first = self._packed(optimizer)

    def _packed(self, optimizer: Optimizer) -> bytes:
        tensors = {_PROGRESS: torch.tensor([self.step, *self.counted])}
        for index, parameter in enumerate(parameters_of(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                name = f"{index}.{key}"
                if isinstance(value, torch.Tensor):
                    tensors[name] = value.detach().cpu().clone().contiguous()
                elif isinstance(value, int | float):
                    self._numbers[name] = type(value)
                    tensors[name] = torch.tensor(value, dtype=torch.float64)
                elif value is not None:
                    raise InvalidTypeError(
                        f"{type(optimizer).__name__} keeps {key!r} as a {type(value).__name__}, "
                        "and a HybridOptimizer passes on tensors and numbers; choose an optimizer "
                        "that keeps those"
                    )
        return safetensors.torch.save(tensors)

    def packed(self) -> torch.Tensor:
        """Return state and progress as bytes: those of safetensors, after their length."""
        content = self._packed(self.optimizer)
        whole = len(content).to_bytes(_LENGTH_BYTES, "little") + content
        return torch.frombuffer(bytearray(whole.ljust(self.room, b"\0")), dtype=torch.uint8)

    def unpack(self, packed: torch.Tensor) -> None:
        """Take over what `packed` has returned; all zeros are from before the first step."""
        content = packed.numpy().tobytes()
        length = int.from_bytes(content[:_LENGTH_BYTES], "little")
        found = safetensors.torch.load(content[_LENGTH_BYTES:][:length] or self._first)
        self.step, *self.counted = found.pop(_PROGRESS).tolist()
        state: defaultdict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
        for name, value in found.items():
            index, _, key = name.partition(".")
            parameter = self.parameters[int(index)]
            if name in self._numbers:
                state[parameter][key] = self._numbers[name](value.item())
            else:
                # As in torch's load_state_dict: counts of steps stay on the CPU.
                state[parameter][key] = value.to(parameter.device if value.dim() else "cpu")
        self.optimizer.state = state


@contextmanager
def _or_again() -> Iterator[None]:
    """Take note that a generation has ended; the caller tries again in the next one."""
    try:
        yield
    except LostGroupError as error:
        _LOG.warning("the workers that all-reduce come together again: %s", error)


class _Gradients:
    """How many gradients a task has come with, as of the steps that its program counts.

    Args:
        dense: Knows how many of them count.
        worker: The number of the task.

    Attributes:
        number: Those of its processes before included; None before the others have told.
    """

    def __init__(self, dense: _Dense, worker: int) -> None:
        self._dense, self._worker = dense, worker
        self.number: int | None = None

    @property
    def counted(self) -> int:
        """How many of them are in the dense parameters."""
        return self._dense.counted[self._worker]

    def state_dict(self) -> int:
        """Return the number."""
        return self.counted if self.number is None else self.number

    def load_state_dict(self, number: int) -> None:
        """Number those that come from there on."""
        self.number = number

    def next(self) -> int:
        """Return the number of the next gradient, none of which was given before."""
        self.number = self.state_dict() + 1
        return self.number


class _ServersCopy:
    """What servers keep of the dense part: what is saved, and what a first worker begins with.

    Args:
        hosting: Has the variables.
        dense: The dense part.
        name: Of the variable with the optimizer's state.
    """

    def __init__(self, hosting: RemoteHosting, dense: _Dense, name: str) -> None:
        self._hosting, self._dense = hosting, dense
        self._shared = lent(hosting, dense.optimizer, "HybridOptimizer", is_kept=True)
        with entered(hosting.extended._container_strategy()):
            empty = torch.zeros(dense.room, dtype=torch.uint8)
            packed: Any = Variable(empty, trainable=False, name=name)
        assert isinstance(packed, RemoteVariable)
        self._packed = packed
        self._written = 0

    def is_behind(self) -> bool:
        """Whether this program has had it replaced, as by a checkpoint."""
        return self._hosting.is_behind(self._shared)

    def adopt(self) -> None:
        """Give this worker what the servers have."""
        self._hosting.bring(self._shared)
        with torch.no_grad():
            for own, shared in zip(self._dense.parameters, self._shared, strict=True):
                own.copy_(shared)
        self._dense.unpack(self._hosting.store.snapshot(self._packed))
        self._written = self._dense.step

    def write(self) -> None:
        """Give servers what this worker has, unless it is older, or there already."""
        if self._dense.step == self._written:
            return
        with torch.no_grad():
            for own, shared in zip(self._dense.parameters, self._shared, strict=True):
                shared.copy_(own)
        found = [hosted_parameter(one) for one in self._shared]
        carry(self._hosting.store, [one for one in found if one is not None])
        writing = Writing(self._packed.name, ASSIGN_MODE_SET, self._dense.packed())
        self._hosting.store.write({self._packed: writing})
        self._packed.outdate()
        self._written = self._dense.step


class HybridOptimizer(OwnSteps):
    """Trains dense parameters in the workers, by all-reduce, and tables on the servers.

    Servers suit tables, of which a step needs a few rows. A dense parameter is needed as a whole in
    each step, and comes cheaper from the other workers: their gradients become their mean, as with
    `torch.nn.parallel.DistributedDataParallel`, and each worker steps its own copy, which stays
    equal to all others::

        with strategy.scope():
            model = Model()  # model.table is a stratagem.nn.Embedding
        optimizer = HybridOptimizer(
            torch.optim.Adam(model.layer.parameters()),
            tables=DistributedOptimizer(torch.optim.Adagrad(model.table.parameters())),
        )

        def replica_step(batch):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

        strategy.run(replica_step, args=(batch,))

    Workers need no port: they find each other by the servers, which also decide who all-reduces
    together. When a worker is lost, the others do so without it, and with it once it is back: it
    then has their values and the state of their optimizer. Each gradient of a worker counts once,
    or, of one that was lost in between, not at all.

    The servers have a copy of the dense part, which `save`, `publish`, `snapshot` and `finish`
    bring up to date: the chief's values and state. `restore` and `resume` give it to all workers.
    Without a cluster it is a `DistributedOptimizer` of each part.

    Gradients travel through the memory of the host, by gloo, which encrypts nothing: on several
    machines STRATAGEM_INSECURE has to be set.

    Args:
        dense: A fresh optimizer of torch over dense parameters of one strategy.
        tables: What steps the rest, at the same time. Its hyperparameters and its state are its
            own, and so is what its consistency says.
        patience: How many seconds workers wait, once one is lost, for others that are still there
            and do not come; these are let in later.

    Raises:
        InvalidTypeError: `dense` is no `torch.optim.Optimizer` or keeps what is neither tensor nor
            number, or `tables` no `DistributedOptimizer`.
        InvalidArgumentError: A parameter is a table, is divided by `fully_shard`, or belongs to no
            strategy, to another one or to one without servers; `patience` is not above 0; or this
            process has several replicas.
        FailedPreconditionError: `dense` has state; this process does not train; a coordinator sends
            functions; or workers of other machines would be met without certificates.
    """

    __module__ = "stratagem"
    _is_kept = True

    def __init__(
        self,
        dense: Optimizer,
        tables: DistributedOptimizer | None = None,
        *,
        patience: float = 10.0,
    ) -> None:
        if not isinstance(dense, Optimizer) or isinstance(dense, DistributedOptimizer):
            raise InvalidTypeError(f"dense is a plain torch.optim.Optimizer, not {dense!r}")
        if not (tables is None or isinstance(tables, DistributedOptimizer)):
            raise InvalidTypeError(f"tables is a DistributedOptimizer, not {tables!r}")
        if not patience > 0:
            raise InvalidArgumentError(f"patience is {patience}; it has to be above 0")
        require_fresh(dense)
        self._inner, self._tables = dense, tables
        hosting = hosting_of_own(parameters_of(dense), "HybridOptimizer")
        self._has_joined = self._is_inside = False
        self._is_alone = not isinstance(hosting, RemoteHosting)
        if isinstance(hosting, RemoteHosting):
            self._begin(hosting, patience)
        else:
            self._inner = DistributedOptimizer(dense)
        # Sets up hooks and profiling; __init__ would build groups of its own.
        Optimizer.__setstate__(self, {})

    def _begin(self, hosting: RemoteHosting, patience: float) -> None:
        hosting.membership.require_trainer()
        if hosting.checkpoints.is_coordinated or hosting.elsewhere is not None:
            raise FailedPreconditionError(
                "a HybridOptimizer reduces gradients of workers that run the same program, and "
                "here a ClusterCoordinator schedules functions; have the servers step all by a "
                "DistributedOptimizer"
            )
        # Workers that wait take part in the steps of one, whatever the order of the program's.
        hosting.require_none_kept("another HybridOptimizer")
        first = hosted_parameter(parameters_of(self._inner)[0])
        assert first is not None
        name = f"stratagem/hybrid/{first.name}"
        self._group = DenseGroup(name, hosting.membership, hosting.store, patience)
        self._dense = _Dense(self._inner)
        self._copy, self._hosting = _ServersCopy(hosting, self._dense, name), hosting
        # A program that is started again goes on with what its servers have.
        self._copy.adopt()
        self._buffer_names = [name for name, _ in hosting.adopter.buffers]
        self._gradients = _Gradients(self._dense, self._group.worker)
        # Whether no worker has the dense part any more that the tables were trained with.
        self._is_behind = False
        # Whether all have heard of a new generation; whether this worker has.
        self._is_due = self._is_outdated = self._have_met = False
        hosting.optimizers_in_use.add(self)
        if hosting.checkpoints.counter.is_resumed and self._resumed():
            raise FailedPreconditionError(_BEHIND)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step both parts: first the dense gradients are reduced, then `tables` steps, then dense.

        Dense gradients are the mean over the workers afterwards.

        Args:
            closure: Computes the loss and the gradients, once.

        Returns:
            What the closure returned.

        Raises:
            InvalidTypeError: A dense gradient is sparse.
            DeadlineExceededError: Workers are missing at the start; they are told.
            StratagemError: As of the step of `tables`; the dense part has taken its step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._inside():
            is_reduced = self._is_alone or self._reduce()
            try:
                if self._tables is not None:
                    self._tables.step()
            finally:
                # All others take it.
                if is_reduced:
                    self._inner.step()
        return loss

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Leave it to what follows to come together with the others."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    def _reduce(self) -> bool:
        """Have dense gradients be the mean over all workers; return False if they count already.

        A gradient is numbered by its worker. Where a generation ends in the midst of a reduction,
        some may have its result and others not. The next one begins with the newest values there
        are, and its members know by the numbers which gradients are in these.
        """
        gradients, number = self._own_gradients(), 0
        while True:
            with _or_again():
                if not self._is_together():
                    is_late = not self._has_joined and self._group.exists()
                    self._join()
                    if is_late:
                        _LOG.warning(
                            "the first dense gradient of this worker does not count: it was "
                            "computed with what servers had, and the other workers have trained "
                            "on; call strategy.refresh() before the first step"
                        )
                        return False
                number = number or self._gradients.next()
                return number > self._gradients.counted and self._reduced(gradients, number)

    def _is_together(self) -> bool:
        """Whether this worker can reduce in the generation that it is in."""
        if not self._group.is_in or self._is_due:
            return False
        self._is_outdated = self._group.is_outdated()
        return not (self._is_outdated and self._group.is_alone)

    def _own_gradients(self) -> list[torch.Tensor | None]:
        found = []
        for parameter in self._dense.parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.layout is not torch.strided:
                raise InvalidTypeError(
                    "a dense parameter has a sparse gradient, which is not all-reduced; leave "
                    "sparse=True out, or have the servers keep the table: stratagem.nn.Embedding"
                )
            found.append(None if gradient is None else gradient.detach())
        return found

    def _reduced(
        self, gradients: Sequence[torch.Tensor | None], number: int, has_met: bool = False
    ) -> bool:
        """Carry out a reduction, in which this worker's gradient has a number, or 0 is none.

        Return whether there was any gradient, so that the dense part takes a step.
        """
        dense, group = self._dense, self._group
        has_gradient = [gradient is not None for gradient in gradients]
        numbers = [0] * group.num_workers
        numbers[group.worker] = number
        flags = [self._is_outdated, has_met, *has_gradient]
        told = torch.tensor([*flags, *numbers], dtype=torch.int64)
        own = [
            torch.zeros_like(parameter, device="cpu") if gradient is None else gradient.cpu()
            for parameter, gradient in zip(dense.parameters, gradients, strict=True)
        ]
        # What is told comes first: whoever has the sums knows of whom they are.
        (heard,) = group.sums([told])
        sums = group.sums(own)
        is_due, have_met, *rest = heard.tolist()
        self._is_due, self._have_met = is_due > 0, have_met > 0
        has_any, numbers = rest[: len(own)], rest[len(own) :]
        count = sum(one > 0 for one in numbers)
        if not count:
            return False
        for parameter, total, is_there in zip(dense.parameters, sums, has_any, strict=True):
            parameter.grad = (total / count).to(parameter.device) if is_there else None
        dense.step += 1
        before = dense.counted[: len(numbers)]
        dense.counted[: len(numbers)] = [a or b for a, b in zip(numbers, before, strict=True)]
        return True

    def _join(self) -> None:
        """Come together with the others, and take over the newest values."""
        dense, buffers = self._dense, self._buffers()
        while True:
            with _or_again():
                told = self._has_joined, self._is_behind, self._gradients.number or 0
                members = self._group.form(dense.step, *told)
                values = [one.detach().cpu() for one in [*dense.parameters, *buffers]]
                *found, packed = self._group.spread([*values, dense.packed()])
                break
        with torch.no_grad():
            # Statistics are each worker's own; who has none yet begins with the first one's.
            into = [*dense.parameters, *(() if self._has_joined else buffers)]
            for own, value in zip(into, found, strict=False):
                own.copy_(value)
        dense.unpack(packed)
        self._note_loss(members)
        self._has_joined, self._is_due = True, False

    def _buffers(self) -> list[torch.Tensor]:
        present = dict(self._hosting.adopter.buffers)
        return [present[name] for name in self._buffer_names if name in present]

    def _note_loss(self, members: Sequence[Member]) -> None:
        """Note that all workers were lost since the servers' copy, if so.

        Who was in no generation before goes on with the copy; each knows how many gradients it has
        come with, if its program counts.
        """
        if any(one.has_joined and not one.is_behind for one in members):
            return
        counted = self._dense.counted
        self._is_behind = any(
            one.is_behind or one.gradients > counted[one.worker] for one in members
        )
        if self._group.generation > 1 and not (self._has_joined or self._is_behind):
            _LOG.warning(
                "no worker is left of those that have all-reduced before: dense parameters go on "
                "as of their step %d, when servers got them last, and tables as they are",
                self._dense.step,
            )

    # What the hosting calls.

    def _follow(self) -> None:
        """Adopt what was restored; who comes late begins with what the others have."""
        if self._is_inside:
            return
        self._adopt()
        if not self._has_joined and self._group.exists():
            self._join()

    def _adopt(self) -> None:
        if self._copy.is_behind():
            self._copy.adopt()
            self._gradients.load_state_dict(self._gradients.counted)
            self._is_behind = False

    def _keep(self) -> None:
        self._copy.write()

    def _meet(self, meet: Callable[[], object]) -> None:
        """Meet the others; until they are there, take the steps that they still take.

        So they need not wait for gradients of this worker, which has their values when they meet.
        """
        if not self._has_joined and not self._group.exists():
            meet()
            return
        with ThreadPoolExecutor(1) as threads, self._inside():
            met = threads.submit(copy_context().run, meet)
            self._take_part(met)
        met.result()

    def _take_part(self, met: Future[object]) -> None:
        nothing = [None] * len(self._dense.parameters)
        self._have_met = False
        while not self._have_met:
            with _or_again():
                if not self._is_together():
                    self._join()
                if self._reduced(nothing, 0, met.done()):
                    self._inner.step()
                    self._inner.zero_grad()
                else:
                    time.sleep(_PAUSE_SECONDS)

    def _part(self) -> None:
        if not self._is_inside:
            self._group.leave()

    def _resumed(self) -> bool:
        self._adopt()
        self._hosting.checkpoints.states._register(self._group.name, self._gradients)
        if self._group.num_workers == 1 or self._group.exists():
            self._join()
        return self._is_behind

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the dense parameters and of what `tables` steps."""
        self._inner.zero_grad(set_to_none)
        if self._tables is not None:
            self._tables.zero_grad(set_to_none)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the state of the dense part, before the first step and on all workers.

        Raises:
            FailedPreconditionError: This worker has joined the others.
        """
        if self._has_joined:
            raise FailedPreconditionError(
                "the workers have taken steps together, and this one alone would go on from "
                "another state; load it before the first step, or restore a checkpoint by "
                "strategy.restore() or roll_back()"
            )
        super().load_state_dict(state_dict)

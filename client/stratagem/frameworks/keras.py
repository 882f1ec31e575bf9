"""Keras' `fit` on parameter servers.

Needs the package `keras`, of version 3, on PyTorch: `pip install 'stratagem[keras]'`, and
`KERAS_BACKEND=torch` in the environment before anything imports it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from stratagem._hosting.hosted_parameter import hosted_parameter
from stratagem._hosting.hosting import hosting_of
from stratagem._hosting.optimizer import DistributedOptimizer
from stratagem._parameter_server.alone import LocalExtended
from stratagem._parameter_server.strategy import ParameterServerStrategy
from stratagem._strategies.strategy import Strategy, get_strategy
from stratagem.frameworks._handover import (
    adopt,
    distributed,
    gathered,
    input_of,
    sole_device,
    updates_of_a_step,
)
from stratagem.frameworks._keras_optimizers import as_torch, can_step_rows, require_known
from stratagem_proto.errors import (
    ContextError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)

try:
    import keras
except ImportError as error:
    raise ImportError(
        "Keras 3 must be installed, and be told to use PyTorch, before its models train on "
        "parameter servers: run `pip install 'stratagem[keras]'`, and set KERAS_BACKEND=torch in "
        "the environment before anything imports keras"
    ) from error
if keras.backend.backend() != "torch":
    raise ImportError(
        f"Keras computes with {keras.backend.backend()}, and parameter servers train models of "
        "PyTorch; set KERAS_BACKEND=torch in the environment before anything imports keras"
    )

__all__ = ["prepare"]

_LOG = logging.getLogger("stratagem")

_MOST_BYTES_WHOLE = 1 << 20


def prepare(strategy: Strategy, model: Any, *, lazy: bool = False, **settings: Any) -> None:
    """Have a compiled Keras model train on parameter servers from now on.

        strategy = stratagem.ParameterServerStrategy()
        model = keras.Sequential([...])
        model.compile("adagrad", loss="mse")
        prepare(strategy, model)
        model.fit(x, y)

    Every worker runs the whole program on examples of its own (`stratagem.frameworks.part`). The
    weights that all train are the chief's. Steps are those of the model's optimizer, which counts
    them and has their learning rate; its state is on the servers. Without a cluster, and under a
    `OneDeviceStrategy` or another strategy of one replica, the model trains by Keras alone.

    An `Embedding` is a table, of which a worker pulls and pushes the rows of a batch, where the
    optimizer leaves all other rows as they are: with SGD without momentum, with Adagrad, and, if
    `lazy` is set, with Adam. Else all of it is pulled and pushed, as other weights are.

    Args:
        strategy: A `ParameterServerStrategy` of one replica in this process, or any strategy of one
            replica in all.
        model: A `keras.Model` that is compiled, and has not been trained by its optimizer. If it is
            compiled again, the new optimizer trains on the servers, too.
        lazy: Whether Adam leaves alone the rows of an `Embedding` that a batch does not look up.
            Keras' own moves them by what they had of gradients before.
        settings: Further arguments of `stratagem.DistributedOptimizer` by name.

    Raises:
        InvalidTypeError: `model` is no `keras.Model`, or several replicas train without servers.
        InvalidArgumentError: The model or its optimizer has what servers cannot do as Keras does,
            or the strategy has several replicas in this process, or the only one on another device
            than Keras has the model on.
        FailedPreconditionError: The model is not compiled, was prepared before, or its optimizer
            has taken steps.
        ContextError: The strategy's scope is open, or was when the model was built.
    """
    if not isinstance(strategy, ParameterServerStrategy):
        _require_one_replica(strategy)
    else:
        sole_device(strategy)
    if not isinstance(model, keras.Model):
        raise InvalidTypeError(f"prepare takes a keras.Model, and this is {model!r}")
    if not model.compiled or _MARK in vars(model):
        what = "prepared already" if model.compiled else "not compiled"
        raise FailedPreconditionError(
            f"model {model.name!r} is {what}; call model.compile(), and then prepare() once"
        )
    if get_strategy() is strategy:
        raise ContextError(
            "the strategy's scope is open; build, compile and prepare a Keras model outside of it"
        )
    if isinstance(strategy, ParameterServerStrategy):
        _Trained(strategy, model, lazy, settings).take_over()
        return
    _require_on(strategy, model)
    vars(model)[_MARK] = strategy


def _require_one_replica(strategy: Any) -> None:
    """Check that Keras alone is all that a strategy without servers would do."""
    is_one = isinstance(strategy, Strategy) and strategy.num_replicas_in_sync == 1
    if is_one and hosting_of(strategy.extended) is not None:
        return
    what = f"{type(strategy).__name__}"
    if isinstance(strategy, Strategy):
        what += f" with {strategy.num_replicas_in_sync} replicas"
    raise InvalidTypeError(
        f"Keras' fit trains on parameter servers, or in one replica, and this is a {what}, whose "
        'replicas it does not know; make a stratagem.ParameterServerStrategy(consistency="sync"), '
        "with a worker for each device, or train by strategy.run"
    )


def _require_on(strategy: Strategy, model: Any) -> None:
    hosting = hosting_of(strategy.extended)
    assert hosting is not None
    device = hosting.devices[0]
    for weight in model.weights if model.built else ():
        if weight.value.device.type != device.type:
            raise InvalidArgumentError(
                f"Keras has {weight.path!r} on {weight.value.device}, and the strategy trains on "
                f"{device}; build the model inside `with keras.device({str(device)!r}):`"
            )


_MARK = "_stratagem"


class _Weight(NamedTuple):
    """A weight of a model.

    Attributes:
        name: By which servers know it.
        variable: Keras' variable.
        layer: Which has it.
        is_trained: Whether optimizers train it, unless it is frozen. Others are statistics, as
            `BatchNormalization` has them, which layers write themselves.
    """

    name: str
    variable: Any
    layer: Any
    is_trained: bool

    @property
    def is_looked_up(self) -> bool:
        """Whether nothing but rows of it is needed."""
        plain = keras.layers.Embedding
        layer = self.layer
        return (
            isinstance(layer, plain)
            and type(layer).call is plain.call
            and not layer.lora_enabled
            and layer.quantization_mode is None
            and self.variable is layer._embeddings
            and self.variable.regularizer is None
        )

    def require_free(self) -> None:
        """Refuse what writes a weight besides an optimizer's step."""
        for attribute in "constraint", "overwrite_with_gradient":
            if getattr(self.variable, attribute, None):
                raise InvalidArgumentError(
                    f"{self.variable.path!r} has a {attribute}, by which this worker would write "
                    "over what all workers have trained; leave it out"
                )


def _weights_of(model: Any) -> list[_Weight]:
    found: dict[int, _Weight] = {}
    taken: set[str] = set()
    for layer in model._flatten_layers():
        kinds = (True, layer._trainable_variables), (False, layer._non_trainable_variables)
        for is_trained, variables in kinds:
            for variable in variables:
                if id(variable) in found:
                    continue
                plain = variable.path.removeprefix(f"{model.name}/").replace("/", ".")
                name, number = plain, 0
                while name in taken:
                    name, number = f"{plain}_{number + 1}", number + 1
                taken.add(name)
                found[id(variable)] = _Weight(name, variable, layer, is_trained)
    return [*found.values()]


class _Held(nn.Module):
    """The weights of a model as a strategy knows them: parameters, tables and buffers.

    It is named as Keras names things, which torch does not let attributes of modules be.

    Args:
        weights: The weights.
        tables: The ids of the variables that are tables.
    """

    def __init__(self, weights: Sequence[_Weight], tables: set[int]) -> None:
        super().__init__()
        for name, variable, _, is_trained in weights:
            value = variable._value
            if not is_trained:
                # Layers write it in place.
                self._buffers[name] = value.detach()
            elif id(variable) in tables:
                table = nn.Embedding(1, 1, sparse=True)
                table.num_embeddings, table.embedding_dim = value.shape
                table._parameters["weight"] = value
                self._modules[name] = table
            else:
                self._parameters[name] = value


class _Trained:
    """A model whose optimizer steps on servers.

    Its methods take the place of those of the model and the optimizer that have their names, in
    these objects alone; classes, and what Keras saves, stay as they are.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        model: Any,
        lazy: bool,
        settings: Mapping[str, Any],
    ) -> None:
        self._strategy, self._model = strategy, model
        self._lazy, self._settings = lazy, settings
        self._is_alone = isinstance(strategy.extended, LocalExtended)
        self._own_fit, self._own_compile = model.fit, model.compile
        self._held: _Held | None = None
        self._tables: set[int] = set()
        self._optimizers: list[DistributedOptimizer] = []

    def take_over(self) -> None:
        """Stand in for the model's methods; if that is refused, the model is as before."""
        try:
            self._take_optimizer()
        except BaseException:
            optimizer = self._model.optimizer
            for name in _OF_OPTIMIZERS:
                vars(optimizer).pop(name, None)
            optimizer.built = False
            raise
        for name in _METHODS:
            vars(self._model)[name] = getattr(self, name)
        vars(self._model)[_MARK] = self

    def compile(self, *args: Any, **settings: Any) -> None:
        """As the model's; the new optimizer steps on the servers, or the model is not compiled."""
        self._own_compile(*args, **settings)
        self._model.compiled = False
        self._take_optimizer()
        self._model.compiled = True

    # The optimizer.

    def _take_optimizer(self) -> None:
        model, optimizer = self._model, self._model.optimizer
        if model.jit_compile:
            raise InvalidArgumentError(
                "jit_compile=True would compile a step without what is on the servers; leave it out"
            )
        if self._is_alone or optimizer is None:
            return
        require_known(optimizer)
        if int(optimizer._iterations.value):
            raise FailedPreconditionError(
                f"{optimizer.name!r} has taken steps, whose state the servers do not have; compile "
                "the model with a new optimizer"
            )
        optimizer.built = False
        instead = (self._build, _do_nothing, _OnRows(optimizer), self._step)
        # Of the object, so that Keras saves what it was given.
        vars(optimizer).update(zip(_OF_OPTIMIZERS, instead, strict=True))
        if model.built and all(layer.built for layer in model._flatten_layers()):
            optimizer.build(model.trainable_variables)

    def _build(self, variables: Sequence[Any]) -> None:
        optimizer = self._model.optimizer
        if optimizer.built:
            return
        # Without what the class makes for its state.
        keras.optimizers.Optimizer.build(optimizer, variables)
        optimizer.built = False
        self._adopt()
        tables = [one for one in variables if id(one) in self._tables]
        for table in tables:
            if not can_step_rows(optimizer, table, self._lazy):
                raise InvalidArgumentError(
                    f"{table.path!r} is a table of which {optimizer.name!r} would step all rows; "
                    "prepare the model when it is compiled with this optimizer"
                )
        if self._optimizers:
            # Of the compilation before.
            self._strategy.forget(*self._optimizers)
            self._optimizers = []
        made = as_torch(optimizer, variables, tables, self._lazy)
        self._optimizers = [distributed(self._strategy, one, **self._settings) for one in made]
        progress = _Progress(optimizer)
        self._strategy.register_for_checkpointing(f"keras.{self._model.name}", progress)
        optimizer.built = True

    def _adopt(self) -> None:
        if self._held is not None:
            return
        optimizer, weights = self._model.optimizer, _weights_of(self._model)
        for one in weights:
            one.require_free()
            if hosted_parameter(one.variable._value) is not None:
                raise ContextError(
                    f"{one.variable.path!r} was made in the scope of a strategy; build, compile "
                    "and prepare a Keras model outside of every scope"
                )
        looked_up = [one.variable for one in weights if one.is_trained and one.is_looked_up]
        self._tables = {id(one) for one in looked_up if can_step_rows(optimizer, one, self._lazy)}
        self._tell_of_whole([one for one in looked_up if id(one) not in self._tables])
        self._held = _Held(weights, self._tables)
        adopt(self._strategy, self._held)

    def _tell_of_whole(self, tables: Sequence[Any]) -> None:
        kind = type(self._model.optimizer).__name__
        for table in tables:
            if self._lazy:
                raise InvalidArgumentError(
                    f"lazy=True, but with these settings {kind} moves all rows of {table.path!r}; "
                    "Adam can do without, if amsgrad, weight decay and accumulation are left out"
                )
            if (nbytes := table._value.nbytes) > _MOST_BYTES_WHOLE:
                _LOG.warning(
                    "all %d bytes of %r are pulled and pushed in each step, since %s moves rows "
                    "that a batch does not look up; Adagrad, SGD without momentum and weight "
                    "decay, and Adam with prepare(lazy=True) leave them alone",
                    nbytes,
                    table.path,
                    kind,
                )

    def _step(self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> None:
        rate = self._rate(rate)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable._value.grad = gradient
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()

    def _rate(self, rate: Any) -> float:
        optimizer = self._model.optimizer
        schedule = optimizer._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            together = updates_of_a_step(self._strategy, self._settings.get("consistency"))
            rate = schedule(optimizer._iterations * together)
        return float(keras.ops.convert_to_tensor(rate))

    # The model.

    def make_train_function(self, force: bool = False) -> None:
        """As the model's, for any number of `steps_per_execution`."""
        self._model.train_function = self._train

    def make_test_function(self, force: bool = False) -> None:
        """Likewise; evaluates the newest weights."""
        self._refresh()
        self._model.test_function = self._test

    def make_predict_function(self, force: bool = False) -> None:
        """Likewise; predicts by the newest weights."""
        self._refresh()
        self._model.predict_function = self._predict

    def _train(self, batches: Sequence[Any]) -> Any:
        logs: Any = {}
        for batch in batches:
            if self._is_alone:
                logs = self._model.train_step(batch)
            else:
                logs = self._strategy.run(self._model.train_step, args=(batch,))
        return logs

    def _test(self, batches: Sequence[Any]) -> Any:
        with torch.no_grad():
            return [self._model.test_step(batch) for batch in batches][-1]

    def _predict(self, batches: Sequence[Any]) -> Any:
        with torch.no_grad():
            first, *others = [self._model.predict_step(batch) for batch in batches]
            if not others:
                return first
            return keras.tree.map_structure(lambda *parts: torch.cat(parts), first, *others)

    def _refresh(self) -> None:
        if self._held is not None:
            self._strategy.refresh()

    def fit(self, *args: Any, **settings: Any) -> Any:
        """As the model's; returns when all workers have trained.

        Raises:
            InvalidArgumentError: A callback would do in each worker what can be done but once.
        """
        if self._is_alone:
            return self._own_fit(*args, **settings)
        bound = inspect.signature(self._own_fit).bind(*args, **settings)
        given = bound.arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            raise InvalidArgumentError("fit takes a list of callbacks here, no CallbackList")
        bound.arguments["callbacks"] = self._callbacks(
            [] if given is None else keras.tree.flatten(given)
        )
        if not self._is_chief:
            bound.arguments["verbose"] = 0
        history = self._own_fit(*bound.args, **bound.kwargs)
        self._strategy.barrier("keras")
        self._strategy.refresh()
        return history

    @property
    def _is_chief(self) -> bool:
        return input_of(self._strategy).input_pipeline_id == 0

    def _callbacks(self, given: Sequence[Any]) -> list[Any]:
        several = input_of(self._strategy).num_input_pipelines > 1
        for callback in given:
            _require_shareable(callback, several)
        if not self._is_chief:
            given = [one for one in given if not isinstance(one, _OF_THE_CHIEF)]
        agreeing = [_Agreement(self._strategy)] if several and any(map(_decides, given)) else []
        return [_Newest(self._strategy), *given, *agreeing]


_METHODS = (
    "compile",
    "fit",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)


_OF_OPTIMIZERS = ("build", "_apply_weight_decay", "_clip_gradients", "_backend_update_step")


def _do_nothing(variables: Sequence[Any]) -> None:
    """Servers decay weights with the step."""


class _OnRows:
    """Clips as an optimizer does; of the gradient of a table, the rows that it has."""

    def __init__(self, optimizer: Any) -> None:
        self._clips = any((optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm))
        self._clip = optimizer._clip_gradients

    def __call__(self, gradients: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not self._clips:
            return gradients
        each = [one.coalesce() if one.is_sparse else one for one in gradients]
        clipped = self._clip([one.values() if one.is_sparse else one for one in each])
        return [
            torch.sparse_coo_tensor(
                one.indices(), its, one.shape, is_coalesced=True, check_invariants=False
            )
            if one.is_sparse
            else its
            for one, its in zip(each, clipped, strict=True)
        ]


class _Progress:
    """What an optimizer of Keras has besides the state on servers, for checkpoints."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Return how many steps it has counted, and its learning rate if it has one."""
        rate = self._optimizer._learning_rate
        state: dict[str, Any] = {"iterations": int(self._optimizer._iterations.value)}
        if isinstance(rate, keras.Variable):
            state["learning_rate"] = float(rate.value)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._optimizer._iterations.assign(state["iterations"])
        if "learning_rate" in state and isinstance(self._optimizer._learning_rate, keras.Variable):
            self._optimizer.learning_rate = state["learning_rate"]


# Callbacks.

_OF_THE_CHIEF = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def _decides(callback: Any) -> bool:
    """Whether a callback may stop the training, or change its learning rate."""
    known = (
        keras.callbacks.EarlyStopping,
        keras.callbacks.ReduceLROnPlateau,
        keras.callbacks.TerminateOnNaN,
    )
    return isinstance(callback, known) or not type(callback).__module__.startswith("keras.")


def _require_shareable(callback: Any, several: bool) -> None:
    name = type(callback).__name__
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise InvalidArgumentError(
            f"{name} would back up this process, without the state on the servers; call "
            "strategy.save in a callback, and strategy.restore before fit"
        )
    if several and getattr(callback, "restore_best_weights", False):
        raise InvalidArgumentError(
            f"{name}(restore_best_weights=True) would have each worker write other weights over "
            "those that all have trained; leave it out, and load the file of a ModelCheckpoint("
            "save_best_only=True) after fit"
        )


class _Newest(keras.callbacks.Callback):  # type: ignore[misc] # its types are not read
    """Has the callbacks that follow see what all workers have trained."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        super().__init__()
        self._strategy = strategy

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self._strategy.refresh()


class _Agreement(keras.callbacks.Callback):  # type: ignore[misc] # its types are not read
    """Has all workers stop, and change learning rates, when the chief does."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        super().__init__()
        self._strategy = strategy

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        optimizer = self.model.optimizer
        has_rate = isinstance(optimizer._learning_rate, keras.Variable)
        rate = float(optimizer.learning_rate.value) if has_rate else 0.0
        own = [float(self.model.stop_training), rate]
        stops, rate = gathered(self._strategy, torch.tensor(own, dtype=torch.float64))[0].tolist()
        self.model.stop_training = bool(stops)
        if has_rate:
            optimizer.learning_rate = rate

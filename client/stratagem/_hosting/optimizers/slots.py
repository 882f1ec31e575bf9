"""The state of optimizers, which lives with the variables of their strategy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from stratagem._core.contexts import require_cross_replica_or_default
from stratagem._hosting.optimizers.state_elsewhere import StateElsewhere, refused
from stratagem._hosting.optimizers.trained import Trained, TrainedTensors
from stratagem._hosting.optimizers.wrapped import OptimizerWrapper
from stratagem_proto.errors import InvalidTypeError

if TYPE_CHECKING:
    from stratagem._hosting.hosting import Hosting
    from stratagem._hosting.optimizers.rules import Rules
    from stratagem._strategies.strategy import Strategy


class OptimizerWithSlots(OptimizerWrapper):
    """An optimizer around another, whose state is slot variables.

    Under the default strategy it is the wrapped optimizer's own.
    """

    _name: str
    _strategy: Strategy
    _tensors: TrainedTensors
    _rules: Rules
    # What an optimizer has made of it when it was built, by parameter.
    _initial_state: dict[torch.Tensor, Any]

    @property
    def _plain(self) -> bool:
        return self._tensors.plain

    @property
    def _hosting(self) -> Hosting:
        self._tensors.require_remembered()
        return cast("Hosting", self._strategy.extended._hosting)

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """State that is kept here: none but under the default strategy.

        Raises:
            FailedPreconditionError: It is set or changed, under another strategy than the default.
        """
        return self._inner.state

    @state.setter
    def state(self, state: defaultdict[torch.Tensor, Any]) -> None:
        if not self._plain:
            raise refused(self._name)
        self._inner.state = state

    def _keep_state_elsewhere(self) -> None:
        # The wrapped optimizer, too: programs often have both at hand.
        self._inner.state = StateElsewhere(self._name)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as the wrapped optimizer would have it locally.

        Raises:
            ContextError: A replica is running, of another strategy than the default.
        """
        if self._plain:
            return super().state_dict()
        self._require_no_replica("state_dict")
        triples = list(self._trained_by_group())
        variables = [trained.variable for _, _, trained in triples]
        found = self._hosting.slots(self._name, variables)
        states: defaultdict[torch.Tensor, Any] = defaultdict(dict)
        for (index, parameter, trained), slots in zip(triples, found, strict=True):
            local = self._rules.as_local(self.param_groups, index, trained.variable, slots)
            state = dict(local) or self._initial_state.get(parameter)
            if state:
                states[parameter] = state
        self._inner.state = states
        try:
            return super().state_dict()
        finally:
            self._keep_state_elsewhere()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace hyperparameters and state by those of a torch state dict.

        Raises:
            ContextError: A replica is running, of another strategy than the default.
        """
        if self._plain:
            super().load_state_dict(state_dict)
            return
        self._require_no_replica("load_state_dict")
        super().load_state_dict(state_dict)
        try:
            state = self._inner.state
            slots = {
                one.variable: self._rules.as_tensors(state.get(parameter, {}))
                for _, parameter, one in self._trained_by_group()
            }
            self._hosting.set_slots(self._name, slots)
        finally:
            self._keep_state_elsewhere()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The last thing that load_state_dict does; classes fill in what older checkpoints lack.
        self._inner.__setstate__(state)

    def __reduce__(self) -> Any:
        raise InvalidTypeError(
            f"DistributedOptimizer {self._name!r} cannot be copied or pickled, because "
            "its state lives with its strategy's variables; keep its state_dict()"
        )

    def _trained_by_group(self) -> Iterator[tuple[int, torch.Tensor, Trained]]:
        for index, group in enumerate(self.param_groups):
            trained = group["params"].trained()
            for parameter, one in zip(group["params"], trained, strict=True):
                if one is not None:
                    yield index, parameter, one

    def _require_no_replica(self, method: str) -> None:
        name = f"DistributedOptimizer.{method}"
        require_cross_replica_or_default(self._strategy.extended, name)

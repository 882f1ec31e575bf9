"""What a strategy of TensorFlow 1.12 told of itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from stratagem._core.options import old_spelling
from stratagem._core.variables import Variable
from stratagem._strategies.strategy import Strategy
from stratagem_proto.v1.cluster_pb2 import ConfigProto


class StrategyProperties:
    """The methods of TensorFlow 1.12 that may be called anywhere. Spec: TWR-17, TWR-18."""

    _strategy: Strategy

    @old_spelling("Variable.read_value")
    def read_var(self, var: Variable) -> Any:
        """Return the value of a variable, over all towers. Spec: TWR-18."""
        return self._strategy.extended.read_var(var)

    @old_spelling("extended.value_container")
    def value_container(self, value: Any) -> Any:
        """Return the variable that `value` is a component of. Spec: TWR-18."""
        return self._strategy.extended.value_container(value)

    @property
    @old_spelling("num_replicas_in_sync == 1")
    def is_single_tower(self) -> bool:
        """Whether there is one tower. Spec: TWR-18, MS-10."""
        return self._strategy.num_replicas_in_sync == 1

    @property
    @old_spelling("num_replicas_in_sync")
    def num_towers(self) -> int:
        """The number of towers. Spec: TWR-18."""
        return self._strategy.num_replicas_in_sync

    @property
    @old_spelling("extended.worker_devices")
    def worker_devices(self) -> list[str]:
        """Full names of the towers' devices. Spec: TWR-18."""
        return self._worker_devices()

    def _worker_devices(self) -> list[str]:
        return list(self._strategy.extended.worker_devices)

    @property
    @old_spelling("extended.parameter_devices")
    def parameter_devices(self) -> list[str]:
        """Names of the variables' devices. Spec: TWR-18."""
        return list(self._strategy.extended.parameter_devices)

    @old_spelling("extended.non_slot_devices")
    def non_slot_devices(self, var_list: Sequence[Variable]) -> Any:
        """Return where to put variables that belong to no other. Spec: TWR-18."""
        places = self._strategy.extended.non_slot_devices(var_list)
        return list(places) if isinstance(places, tuple) else places

    @property
    @old_spelling("extended.experimental_between_graph")
    def between_graph(self) -> bool:
        """Whether each worker runs the program. Spec: TWR-18."""
        return self._strategy.extended.experimental_between_graph

    @property
    @old_spelling("extended.experimental_should_init")
    def should_init(self) -> bool:
        """Whether this task initialises variables. Spec: TWR-18."""
        return self._strategy.extended.experimental_should_init

    @property
    @old_spelling("extended.should_checkpoint")
    def should_checkpoint(self) -> bool:
        """Whether this task writes checkpoints. Spec: TWR-18."""
        return self._strategy.extended.should_checkpoint

    @property
    @old_spelling("extended.should_save_summary")
    def should_save_summary(self) -> bool:
        """Whether this task writes summaries. Spec: TWR-18."""
        return self._strategy.extended.should_save_summary

    @old_spelling("nothing, as there is nothing to initialize,")
    def initialize(self) -> None:
        """Do nothing. Spec: TWR-17."""

    @old_spelling("nothing, as there is nothing to finalize,")
    def finalize(self) -> None:
        """Do nothing. Spec: TWR-17."""

    @old_spelling("update_config_proto, and a cluster resolver,")
    def configure(
        self,
        session_config: ConfigProto | None = None,
        cluster_spec: Any = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        """Do nothing. Spec: TWR-20."""

    @old_spelling("extended.colocate_vars_with")
    def colocate_vars_with(self, colocate_with_variable: Any) -> AbstractContextManager[Any]:
        """Return a scope whose variables go to the devices of another one."""
        where = as_places(colocate_with_variable)
        return self._strategy.extended.colocate_vars_with(where)


def as_places(places: Any) -> Any:
    """Return places as a `stratagem.Strategy` takes them: devices as a tuple, not a list."""
    return tuple(places) if isinstance(places, list) else places

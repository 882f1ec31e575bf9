"""The hyperparameters of the param groups of a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

import torch

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.programs.optimizers import OptimizerRule, Value, rule_named
from stratagem_proto.programs.update_programs import decode_group
from stratagem_proto.v1.update_program_pb2 import HyperparameterGroup
from stratagem_psserver.optimization.certainty import are_ordinary
from stratagem_psserver.optimization.dry_run import StepNeeds, dry_run, hyperparameters_of
from stratagem_psserver.optimization.single_steps import Prototype

# Larger groups are not cached; sensible hyperparameters take less.
_MOST_GROUP_BYTES = 4 << 10


class GroupSettings:
    """The hyperparameters of a param group, and what is cached about them.

    Attributes:
        rule: The optimizer.
        values: The hyperparameters by name.
    """

    def __init__(self, rule: OptimizerRule, values: Mapping[str, Value]) -> None:
        self.rule, self.values = rule, values
        self._needs: dict[tuple[torch.dtype, bool], StepNeeds] = {}
        self._ordinary: dict[torch.dtype, bool] = {}

    def needs(self, dtype: torch.dtype, sparse: bool) -> StepNeeds:
        """Return what a step of a parameter of that dtype needs."""
        key = (dtype, sparse)
        if key not in self._needs:
            self._needs[key] = dry_run(self.rule, self.values, dtype, sparse)
        return self._needs[key]

    def is_ordinary(self, dtype: torch.dtype) -> bool:
        """Return whether the hyperparameters are ordinary for parameters of that dtype."""
        if dtype not in self._ordinary:
            self._ordinary[dtype] = are_ordinary(self.rule, self.values, dtype)
        return self._ordinary[dtype]

    @cached_property
    def prototype(self) -> Prototype:
        """Makes optimizers with these hyperparameters; use it after `needs`, which checks them."""
        return Prototype(self.rule, self.values)


def settings_of(class_name: str, group: HyperparameterGroup) -> GroupSettings:
    """Return the settings of a group, which are cached because most steps repeat them.

    Raises:
        InvalidArgumentError: There is no such class, or it has other hyperparameters.
    """
    encoded = group.SerializeToString()
    is_small = len(encoded) <= _MOST_GROUP_BYTES
    return (_known_settings if is_small else _decoded)(class_name, encoded)


def _decoded(class_name: str, group: bytes) -> GroupSettings:
    rule = rule_named(class_name)
    values = decode_group(rule, HyperparameterGroup.FromString(group))
    return GroupSettings(rule, _complete(rule, values))


_known_settings = lru_cache(maxsize=1024)(_decoded)


def _complete(rule: OptimizerRule, values: Mapping[str, Value]) -> Mapping[str, Value]:
    if missing := hyperparameters_of(rule) - values.keys():
        raise InvalidArgumentError(
            f"a param group of {rule.cls.__name__} comes without {sorted(missing)}; "
            "send all hyperparameters with each step"
        )
    return values

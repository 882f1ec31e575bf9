"""How the variables of each param group of a step are stepped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram
from stratagem_psserver.optimization.hyperparameters import GroupSettings, settings_of
from stratagem_psserver.optimization.traced_rules import TracedSettings, traced_settings

Settings: TypeAlias = GroupSettings | TracedSettings
"""The settings of a param group: of a class of `torch.optim`, or of a traced rule."""


def settings_of_groups(program: OptimizerProgram) -> Sequence[Settings]:
    """Return the settings of each param group of a program.

    Raises:
        InvalidArgumentError: The class, a hyperparameter or a rule is not acceptable.
        ResourceExhaustedError: A rule is too large.
    """
    if not program.rules:
        return [settings_of(program.class_name, group) for group in program.groups]
    if len(program.rules) != len(program.groups):
        raise InvalidArgumentError(
            f"optimizer {program.name!r} has {len(program.groups)} param groups and "
            f"{len(program.rules)} traced rules; send a rule for each group"
        )
    return list(map(traced_settings, program.rules, program.groups))

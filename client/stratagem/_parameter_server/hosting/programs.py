"""The programs of optimizers' steps, as servers are told of them."""

from __future__ import annotations

from stratagem._optimizers.step import OptimizerStep
from stratagem_proto.optimizers import rule_named, values_of
from stratagem_proto.update_programs import encode_values
from stratagem_proto.v1.update_program_pb2 import OptimizerProgram


class Programs:
    """Encodes the program of a step, anew only if it differs from the last one's."""

    def __init__(self) -> None:
        # By optimizer; with the text of its class and hyperparameters, which is exact,
        # and tells 1 from 1.0 and 0.0 from -0.0.
        self._last: dict[str, tuple[str, OptimizerProgram]] = {}

    def of(self, step: OptimizerStep) -> OptimizerProgram:
        """Return the program of a step, which is not to be changed."""
        rule = rule_named(step.class_name)
        groups = [values_of(rule, group.hyperparameters) for group in step.groups]
        text = f"{step.class_name} {groups!r}"
        last = self._last.get(step.optimizer)
        if last is not None and last[0] == text:
            return last[1]
        program = OptimizerProgram(
            name=step.optimizer,
            class_name=step.class_name,
            groups=map(encode_values, groups),
        )
        self._last[step.optimizer] = text, program
        return program

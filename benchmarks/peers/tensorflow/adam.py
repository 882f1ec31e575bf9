"""Adam on parameter servers, by one operation of a server for each variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class Adam:
    """Steps variables where they are. Made in the scope of a strategy."""

    def __init__(self, variables: Sequence[Any], rate: float) -> None:
        """Creates the moments beside the variables."""
        means, variances = (
            [tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2)
        )
        self._moments = [*zip(variables, means, variances, strict=True)]
        self._rate = rate

    def apply(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Sends the gradients; returns the operations that step."""
        pairs = zip(self._moments, gradients, strict=True)
        return [self._stepped(*moments, gradient) for moments, gradient in pairs]

    def _stepped(self, variable: Any, mean: Any, variance: Any, gradient: Any) -> Any:
        # Of rows that a batch has not, the gradient is 0: they are stepped as well.
        dense = tf.convert_to_tensor(gradient)
        with tf.device(variable.device):
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=mean.handle,
                v=variance.handle,
                beta1_power=0.9,
                beta2_power=0.999,
                lr=self._rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=dense,
            )

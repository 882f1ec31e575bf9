"""A step of Adam over 160 tensors that are shaped like ResNet-50's, 102 MB in all."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign

_CONTESTANTS = (
    Contestant("Stratagem", "stratagem.resnet"),
    Contestant("TensorFlow", "tensorflow.resnet", peer=Foreign.TENSORFLOW),
    Contestant("local, with two copies", "limits.resnet"),
)


def resnet(seconds: float = 0.1) -> Contest:
    """Push, Adam with `fused=True`, and pull."""
    names = {each.name for each in _CONTESTANTS}
    question = Question("push + Adam + pull", "step", names, seconds)
    return Contest("resnet", _CONTESTANTS, [question])

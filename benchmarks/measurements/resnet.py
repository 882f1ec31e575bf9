"""A step of Adam over 160 tensors that are shaped like ResNet-50's, 102 MB in all."""

from __future__ import annotations

from benchmarks.harness.contest import Contest, Contestant, Question
from benchmarks.harness.environments import Foreign


def resnet(tensors: int = 160, seconds: float = 0.1) -> Contest:
    """Push, Adam with `fused=True`, and pull; of the first tensors."""
    count = [str(tensors)]
    contestants = (
        Contestant("Stratagem", "stratagem.resnet", count),
        Contestant("TensorFlow", "tensorflow.resnet", count, Foreign.TENSORFLOW),
        Contestant("local, with two copies", "limits.resnet", count),
    )
    names = {each.name for each in contestants}
    question = Question("push + Adam + pull", "step", names, seconds)
    return Contest("resnet", contestants, [question])

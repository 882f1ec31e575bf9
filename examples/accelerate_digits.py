"""A loop of Accelerate, unmodified, on parameter servers.

    stratagem run --ps 2 --workers 2 examples/accelerate_digits.py
    python examples/accelerate_digits.py       # the same, in this process alone

`train` is such a loop as the documentation of Accelerate has it. `train_plainly` is the program
around it, and `train_on_servers` the same program on parameter servers.
"""

from __future__ import annotations

import accelerate
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks import part
from stratagem.frameworks.accelerate import Accelerator

EPOCHS, BATCH, RATE, WARM_UP, HELD_OUT = 12, 16, 3e-3, 20, 360

Images = Dataset[tuple[Tensor, ...]]


def train(accelerator: accelerate.Accelerator, images: Images) -> nn.Module:
    """The loop, which knows of no strategy."""
    accelerate.utils.set_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    loader = DataLoader(images, BATCH, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(EPOCHS):
        for pixels, digits in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(pixels), digits)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    accelerator.wait_for_everyone()
    trained: nn.Module = accelerator.unwrap_model(model)
    return trained


def train_plainly() -> float:
    """Returns the share of the held-out images that plain Accelerate recognises."""
    images, held_out = datasets()
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2)
    return accuracy(train(accelerator, images), held_out)


def train_on_servers(resolver: ClusterResolver) -> float:
    """One worker's program; returns what `train_plainly` does."""
    images, held_out = datasets()
    strategy = stratagem.ParameterServerStrategy(resolver)
    accelerator = Accelerator(strategy, gradient_accumulation_steps=2)
    images = part(strategy, images)
    return accuracy(train(accelerator, images), held_out)


def datasets() -> tuple[Images, tuple[Tensor, ...]]:
    """1437 images to train on and 360 held out: pixels (N, 64) and digits (N,)."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    every = TensorDataset(torch.tensor(pixels).float()[order] / 16, torch.tensor(digits)[order])
    return TensorDataset(*every[HELD_OUT:]), every[:HELD_OUT]


@torch.no_grad()
def accuracy(model: nn.Module, images: tuple[Tensor, ...]) -> float:
    """Share of the images that a model recognises."""
    pixels, digits = images
    return float((model.eval()(pixels).argmax(1) == digits).float().mean())


def main() -> None:
    """Trains as the worker that TF_CONFIG describes, or without servers."""
    resolver = TFConfigClusterResolver()
    on_servers = bool(resolver.cluster_spec())
    found = train_on_servers(resolver) if on_servers else train_plainly()
    if not resolver.task_id:
        print(f"{100 * found:.1f} % of the held-out images")


if __name__ == "__main__":
    main()

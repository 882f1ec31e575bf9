"""A worker of several processes, one for each GPU of its host, with one push per step.

torchrun starts the processes; all have the TF_CONFIG of their worker:

    torchrun --standalone --nproc-per-node=2 examples/torchrun.py

The first process is the worker, and only it talks to the servers. torch.distributed (NCCL with
GPUs, else gloo) sends the parameters from it to the others, and the mean of all gradients back to
it. So a host pulls and pushes once per step, however many GPUs it has. Without TF_CONFIG the
optimizer steps in the first process.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import stratagem
from stratagem.cluster_resolver import TFConfigClusterResolver

STEPS, BATCH, RATE, HELD_OUT = 100, 64, 0.01, 360


def network() -> nn.Module:
    """Logits of ten digits, from images of shape (N, 64); the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def images() -> tuple[Tensor, Tensor]:
    """All images, float32 (1797, 64), and their digits, int64 (1797,), shuffled."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    features = torch.from_numpy(pixels).float() / 16
    return features[order], torch.from_numpy(digits)[order]


def batches(worker: int) -> Tensor:
    """Indices of the images of each step, int64 (STEPS, BATCH), from HELD_OUT on."""
    generator = torch.Generator().manual_seed(worker)
    return torch.randint(HELD_OUT, 1797, (STEPS, BATCH), generator=generator)


class Host:
    """The processes of one worker, seen by one of them.

    Attributes:
        rank: Which of them this is; 0 is the one that talks to servers.
        size: How many there are.
        device: Where this one computes.
    """

    def __init__(self) -> None:
        has_gpus = torch.cuda.is_available()
        distributed.init_process_group("nccl" if has_gpus else "gloo")
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.device = torch.device(f"cuda:{self.rank}" if has_gpus else "cpu")
        if has_gpus:
            torch.cuda.set_device(self.device)

    def share_parameters(self, model: nn.Module) -> None:
        """Overwrites the parameters of all by those of the first."""
        vector = parameters_to_vector(model.parameters()).detach()
        distributed.broadcast(vector, 0)
        if self.rank > 0:
            vector_to_parameters(vector, model.parameters())

    def reduce_gradients(self, model: nn.Module) -> None:
        """Overwrites the gradients of the first by the mean of all."""
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        mean = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.reduce(mean, 0)
        mean /= self.size
        start = 0
        for gradient in gradients:
            end = start + gradient.numel()
            gradient.copy_(mean[start:end].view_as(gradient))
            start = end


def train(host: Host, folder: Path) -> None:
    """The program of each process."""
    resolver = TFConfigClusterResolver()
    features, digits = (each.to(host.device) for each in images())
    # Only the first process takes the worker's place in the cluster.
    strategy = (
        stratagem.ParameterServerStrategy(resolver, num_replicas_per_worker=1)
        if host.rank == 0
        else stratagem.get_strategy()
    )
    with strategy.scope():
        model = network().to(host.device)
    optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(model.parameters(), RATE))

    def step(batch: Tensor) -> None:
        host.share_parameters(model)
        mine = batch[host.rank :: host.size]
        optimizer.zero_grad()
        functional.cross_entropy(model(features[mine]), digits[mine]).backward()
        host.reduce_gradients(model)
        if host.rank == 0:
            optimizer.step()

    for batch in batches(resolver.task_id or 0):
        strategy.run(step, args=(batch,))
    if isinstance(strategy, stratagem.ParameterServerStrategy):
        strategy.barrier("trained")
        accuracy = (model(features[:HELD_OUT]).argmax(1) == digits[:HELD_OUT]).float()
        print(f"{100 * accuracy.mean():.1f} % of the test images")
        folder.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), folder / "model.safetensors")


def main() -> None:
    """Runs one process of those that torchrun starts."""
    host = Host()
    train(host, Path("runs/torchrun"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

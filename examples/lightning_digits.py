"""A `LightningModule` and Lightning's `Trainer`, unmodified, on parameter servers.

    stratagem run --ps 2 --workers 2 examples/lightning_digits.py
    python examples/lightning_digits.py       # the same, in this process alone

`Digits` and `train` are as for Lightning alone. `train_plainly` is the program around them, and
`train_on_servers` the same program on parameter servers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks import part
from stratagem.frameworks.lightning import OnServers

BATCH, RATE, WARM_UP, HELD_OUT = 16, 3e-3, 20, 360

Images = Dataset[tuple[Tensor, ...]]


class Digits(lightning.LightningModule):  # type: ignore[misc] # its types are not read
    """Recognises digits in images of shape (N, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Returns the loss of a batch of images and digits."""
        pixels, digits = batch
        loss = functional.cross_entropy(self.network(pixels), digits)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Logs the share of the images that are recognised."""
        pixels, digits = batch
        right = self.network(pixels).argmax(1) == digits
        self.log("accuracy", right.float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, Any]:
        """Biases do not decay, and the rate warms up."""
        biases = [each for each in self.parameters() if each.dim() == 1]
        weights = [each for each in self.parameters() if each.dim() > 1]
        groups: list[dict[str, Any]] = [
            {"params": weights},
            {"params": biases, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=0.01)
        schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(
    images: Images,
    held_out: Images,
    folder: Path,
    epochs: int = 12,
    resume: str | None = None,
    **settings: Any,
) -> float:
    """Trains, keeps the best model in a folder, and returns the accuracy of the last one."""
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(folder, "best", "accuracy", mode="max", save_last=True)],
        logger=CSVLogger(folder, name="log"),
        log_every_n_steps=20,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        **settings,
    )
    module, loader = Digits(), DataLoader(held_out, HELD_OUT)
    trainer.fit(module, DataLoader(images, BATCH, shuffle=True), loader, ckpt_path=resume)
    (found,) = trainer.validate(module, loader, verbose=False)
    return float(found["accuracy"])


def train_plainly(folder: Path) -> float:
    """Trains by Lightning alone."""
    images, held_out = datasets()
    return train(images, held_out, folder)


def train_on_servers(
    resolver: ClusterResolver, folder: Path, epochs: int = 12, resume: str | None = None
) -> float:
    """One worker's program."""
    images, held_out = datasets()
    strategy = stratagem.ParameterServerStrategy(resolver)
    images = part(strategy, images)
    return train(images, held_out, folder, epochs, resume, strategy=OnServers(strategy))


def datasets() -> tuple[Images, Images]:
    """1437 images to train on and 360 held out: pixels (N, 64) and digits (N,)."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    every = TensorDataset(torch.tensor(pixels).float()[order] / 16, torch.tensor(digits)[order])
    return TensorDataset(*every[HELD_OUT:]), TensorDataset(*every[:HELD_OUT])


def main() -> None:
    """Trains as the worker that TF_CONFIG describes, or without servers."""
    resolver, folder = TFConfigClusterResolver(), Path("runs/lightning")
    on_servers = bool(resolver.cluster_spec())
    found = train_on_servers(resolver, folder) if on_servers else train_plainly(folder)
    if not resolver.task_id:
        print(f"{100 * found:.1f} % of the held-out images")


if __name__ == "__main__":
    main()

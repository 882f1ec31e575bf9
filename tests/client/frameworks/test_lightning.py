"""Lightning's `Trainer` with one worker, which gives what it gives alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stratagem import FailedPreconditionError, InvalidArgumentError, ParameterServerStrategy
from tests.client.clusters import running
from tests.client.parameter_server.loops import in_bytes, noise

lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

# Of the framework, about loaders and devices.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def strategy() -> Iterator[ParameterServerStrategy]:
    with running(2) as cluster, cluster.strategy() as strategy:
        yield strategy


def module() -> Any:
    from examples.lightning_digits import Digits

    lightning.seed_everything(0, verbose=False)
    return Digits()


def images() -> Any:
    digits = torch.arange(48) % 10
    return DataLoader(TensorDataset(noise(0, 48, 64), digits), 4)


def trainer_in(folder: Path, **settings: Any) -> Any:
    settings = {"max_epochs": 2, "gradient_clip_val": 0.1, **settings}
    return lightning.Trainer(
        default_root_dir=folder,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def on_servers(strategy: ParameterServerStrategy, **settings: Any) -> Any:
    from stratagem.frameworks.lightning import OnServers

    return OnServers(strategy, **settings)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_one_worker_ends_with_the_bytes_of_lightning(
    strategy: ParameterServerStrategy, tmp_path: Path, precision: Any
) -> None:
    plain, ours = module(), module()
    trainer_in(tmp_path / "plain", precision=precision).fit(plain, images(), images())
    trainer = trainer_in(tmp_path / "servers", precision=precision, strategy=on_servers(strategy))
    trainer.fit(ours, images(), images())
    assert in_bytes([ours]) == in_bytes([plain])
    assert trainer.validate(ours, images(), verbose=False)


def test_a_checkpoint_of_lightning_goes_on_on_servers(
    strategy: ParameterServerStrategy, tmp_path: Path
) -> None:
    plain, ours = module(), module()
    first = trainer_in(tmp_path, max_epochs=1)
    first.fit(plain, images(), images())
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer_in(tmp_path).fit(plain, images(), images(), ckpt_path=tmp_path / "half.ckpt")
    trainer = trainer_in(tmp_path, strategy=on_servers(strategy))
    trainer.fit(ours, images(), images(), ckpt_path=tmp_path / "half.ckpt")
    assert in_bytes([ours]) == in_bytes([plain])


def test_optimization_by_hand_works(strategy: ParameterServerStrategy, tmp_path: Path) -> None:
    from examples.lightning_digits import Digits

    class ByHand(Digits):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> Any:
            optimizer: Any = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            optimizer.step()
            self.lr_schedulers().step()

    def by_hand() -> Any:
        lightning.seed_everything(0, verbose=False)
        return ByHand()

    def fit(digits: Any, **settings: Any) -> list[bytes]:
        trainer = lightning.Trainer(
            default_root_dir=tmp_path,
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            **settings,
        )
        trainer.fit(digits, images())
        return in_bytes([digits])

    assert fit(by_hand(), strategy=on_servers(strategy)) == fit(by_hand())


def test_float16_is_refused(strategy: ParameterServerStrategy, tmp_path: Path) -> None:
    from lightning.pytorch.plugins import MixedPrecision

    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    trainer = trainer_in(tmp_path, strategy=on_servers(strategy), plugins=[scaled])
    with pytest.raises(InvalidArgumentError, match="GradScaler"):
        trainer.fit(module(), images())


def test_weights_that_are_swapped_between_steps_are_refused(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import WeightAveraging

    callbacks = [WeightAveraging()]
    with running(1, num_workers=2) as cluster, cluster.strategy() as strategy:
        trainer = trainer_in(tmp_path, strategy=on_servers(strategy), callbacks=callbacks)
        with pytest.raises(FailedPreconditionError, match="written between two steps"):
            trainer.fit(module(), images(), images())

"""The `Trainer` of Transformers with one worker, which gives what it gives alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stratagem import InvalidArgumentError
from stratagem.frameworks import adopt
from tests.client.clusters import running
from tests.client.parameter_server.loops import in_bytes

accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
transformers = pytest.importorskip("transformers", reason="Transformers is not installed")

# Of the frameworks, about devices that are not there.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """Accelerate keeps what the first of its objects was made with."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def trained(
    trainer_class: Callable[..., Any], folder: Path, resume: bool = False, **settings: Any
) -> list[bytes]:
    from examples import transformers_sentiment as example

    transformers.set_seed(0)
    arguments = example.arguments(folder, epochs=1)
    arguments.save_strategy, arguments.save_steps = "steps", 5
    trainer = trainer_class(
        args=arguments,
        train_dataset=example.Sentences(160, seed=0),
        eval_dataset=example.Sentences(32, seed=1),
        compute_metrics=example.accuracy,
        **(settings or {"model": example.network()}),
    )
    checkpoint = folder / "checkpoint-5"
    trainer.train(resume_from_checkpoint=str(checkpoint) if resume else None)
    trainer.evaluate()
    return in_bytes([trainer.model])


def weighted(trainer_class: type[Any]) -> type[Any]:
    """A trainer of somebody's own."""

    class Weighted(trainer_class):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **settings: Any) -> Any:
            found = super().compute_loss(*args, **settings)
            return (found[0] / 2, *found[1:]) if isinstance(found, tuple) else found / 2

    return Weighted


def test_one_worker_ends_with_the_bytes_of_the_trainer(tmp_path: Path) -> None:
    from stratagem.frameworks.transformers import Trainer

    expected = trained(transformers.Trainer, tmp_path / "plain")
    with running(2) as cluster, cluster.strategy() as strategy:
        ours = trained(partial(Trainer, strategy=strategy), tmp_path / "servers")
    assert ours == expected


def test_a_checkpoint_of_the_trainer_goes_on_on_servers(tmp_path: Path) -> None:
    from stratagem.frameworks.transformers import Trainer

    expected = trained(transformers.Trainer, tmp_path)
    with running(2) as cluster, cluster.strategy() as strategy:
        ours = trained(partial(Trainer, strategy=strategy), tmp_path, resume=True)
    assert ours == expected


@pytest.mark.parametrize("built", ["by the trainer", "with its optimizer"])
def test_trainers_of_ones_own_and_what_they_are_given_work(tmp_path: Path, built: str) -> None:
    from examples import transformers_sentiment as example
    from stratagem.frameworks.transformers import OnServers

    class WeightedOnServers(OnServers, weighted(transformers.Trainer)):  # type: ignore[misc]
        pass

    def settings() -> dict[str, Any]:
        if built == "by the trainer":
            return {"model_init": example.network}
        transformers.set_seed(0)
        model = example.network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizers": (sgd, None)}

    expected = trained(weighted(transformers.Trainer), tmp_path / "plain", **settings())
    with running(2) as cluster, cluster.strategy() as strategy:
        make = partial(WeightedOnServers, strategy=strategy)
        assert trained(make, tmp_path / "servers", **settings()) == expected


def test_several_workers_load_no_best_model_each(tmp_path: Path) -> None:
    from examples import transformers_sentiment as example
    from stratagem.frameworks.transformers import Trainer

    arguments = example.arguments(tmp_path, epochs=1)
    arguments.load_best_model_at_end = True
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy() as strategy,
        pytest.raises(InvalidArgumentError, match="load_best_model_at_end"),
    ):
        Trainer(strategy=strategy, model=example.network(), args=arguments)


def test_the_chief_alone_is_the_main_process(tmp_path: Path) -> None:
    from examples import transformers_sentiment as example
    from stratagem.frameworks.transformers import Trainer

    arguments = example.arguments(tmp_path / "made", epochs=1)
    with (
        running(1, num_workers=2) as cluster,
        cluster.strategy() as chief,
        cluster.strategy(1) as strategy,
    ):
        adopt(chief, example.network())
        held_out = example.Sentences(8, seed=1)
        trainer = Trainer(
            strategy=strategy, model_init=example.network, args=arguments, eval_dataset=held_out
        )
        assert not trainer.is_world_process_zero()
        assert not (tmp_path / "made").exists()

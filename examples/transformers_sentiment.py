"""The `Trainer` of Transformers, unmodified, on parameter servers.

    stratagem run --ps 2 --workers 2 examples/transformers_sentiment.py
    python examples/transformers_sentiment.py       # the same, in this process alone

A small BERT learns whether a sentence has more good words than bad ones. `train` is a program for
Transformers. `train_plainly` calls it with `transformers.Trainer`, and `train_on_servers` with that
of Stratagem.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.frameworks import part
from stratagem.frameworks.transformers import Trainer

WORDS, LENGTH, SENTENCES, HELD_OUT = 40, 7, 1280, 400


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Sentences of random words, of which those with an even number are good."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(WORDS, (count, LENGTH), generator=generator)
        self.labels = (self.words % 2 == 0).sum(1).gt(LENGTH // 2).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def network() -> transformers.BertForSequenceClassification:
    """A small BERT with random weights."""
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    return transformers.BertForSequenceClassification(config)


def arguments(folder: Path, epochs: int) -> transformers.TrainingArguments:
    """How to train: a usual choice."""
    return transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        learning_rate=5e-3,
        weight_decay=0.01,
        warmup_steps=10,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=HELD_OUT,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        seed=0,
    )


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of the sentences that are understood."""
    right = prediction.predictions.argmax(1) == prediction.label_ids
    return {"accuracy": float(right.mean())}


def train(
    trainer_class: Callable[..., Any],
    sentences: Dataset[Any],
    folder: Path,
    epochs: int = 4,
    resume: bool = False,
) -> float:
    """A program for Transformers; returns the accuracy on held-out sentences."""
    transformers.set_seed(0)
    trainer = trainer_class(
        model=network(),
        args=arguments(folder, epochs),
        train_dataset=sentences,
        eval_dataset=Sentences(HELD_OUT, seed=1),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=resume)
    return float(trainer.evaluate()["eval_accuracy"])


def train_plainly(folder: Path) -> float:
    """Trains by Transformers alone."""
    sentences = Sentences(SENTENCES, seed=0)
    trainer_class = transformers.Trainer
    return train(trainer_class, sentences, folder)


def train_on_servers(
    resolver: ClusterResolver, folder: Path, epochs: int = 4, resume: bool = False
) -> float:
    """One worker's program."""
    strategy = stratagem.ParameterServerStrategy(resolver)
    sentences = part(strategy, Sentences(SENTENCES, seed=0))
    trainer_class = partial(Trainer, strategy=strategy)
    return train(trainer_class, sentences, folder, epochs, resume)


def main() -> None:
    """Trains as the worker that TF_CONFIG describes, or without servers."""
    resolver, folder = TFConfigClusterResolver(), Path("runs/transformers")
    on_servers = bool(resolver.cluster_spec())
    found = train_on_servers(resolver, folder) if on_servers else train_plainly(folder)
    if not resolver.task_id:
        print(f"{100 * found:.1f} % of the held-out sentences")


if __name__ == "__main__":
    main()

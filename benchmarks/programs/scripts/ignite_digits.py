"""The supervised trainer of PyTorch-Ignite."""

import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(digits))
pixels, digits = pixels[order].float() / 16, digits[order]
images = TensorDataset(pixels[360:], digits[360:])
held_out = TensorDataset(pixels[:360], digits[:360])

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
trainer.run(DataLoader(images, 16, shuffle=True), max_epochs=6)

evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
print(f"held-out accuracy: {evaluator.run(DataLoader(held_out, 360)).metrics['accuracy']:.4f}")

"""The `Model` of Poutyne, which is trained as those of Keras are."""

import torch
from poutyne import Model
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(digits))
pixels, digits = pixels[order].float() / 16, digits[order]
images = TensorDataset(pixels[360:], digits[360:])
held_out = TensorDataset(pixels[:360], digits[:360])

network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
model = Model(network, optimizer, "cross_entropy", batch_metrics=["accuracy"])
model.fit_dataset(
    images, epochs=6, batch_size=16, progress_options={"coloring": False}, verbose=False
)
loss, accuracy = model.evaluate_dataset(held_out, verbose=False)
print(f"held-out accuracy: {accuracy / 100:.4f}")

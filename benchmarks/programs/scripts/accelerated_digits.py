"""The `Trainer` of pytorch-accelerated, which trains by Accelerate."""

import torch
from pytorch_accelerated import Trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(digits))
pixels, digits = pixels[order].float() / 16, digits[order]
images = TensorDataset(pixels[360:], digits[360:])

network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
trainer = Trainer(network, nn.CrossEntropyLoss(), optimizer)
trainer.train(images, num_epochs=6, per_device_batch_size=16)

with torch.no_grad():
    found = network.eval()(pixels[:360]).argmax(1)
print(f"held-out accuracy: {(found == digits[:360]).float().mean():.4f}")

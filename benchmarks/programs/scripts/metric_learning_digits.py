"""`MetricLossOnly` of pytorch-metric-learning: images of a digit come close to each other."""

import torch
from pytorch_metric_learning import losses, trainers
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(digits))
pixels, digits = pixels[order].float() / 16, digits[order]
images = TensorDataset(pixels[360:], digits[360:])

trunk = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.Adam(trunk.parameters(), lr=0.003)
trainer = trainers.MetricLossOnly(
    models={"trunk": trunk},
    optimizers={"trunk_optimizer": optimizer},
    batch_size=32,
    loss_funcs={"metric_loss": losses.TripletMarginLoss()},
    dataset=images,
    dataloader_num_workers=0,
)
trainer.train(num_epochs=4)

with torch.no_grad():
    places = trunk.eval()(pixels[:360])
distances = torch.cdist(places, places).fill_diagonal_(torch.inf)
right = digits[distances.argmin(1)] == digits[:360]
print(f"held-out precision at 1: {right.float().mean():.4f}")

"""The `Runner` of MMEngine: how many stars a user gives a film of MovieLens-100K, of RecBole."""

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Factors(BaseModel):
    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(944, 9), nn.Embedding(1683, 9)
        for each in (self.users, self.films):
            nn.init.normal_(each.weight, std=0.05)

    def forward(self, users, films, stars, mode="loss"):
        user, film = self.users(users), self.films(films)
        found = 3.5 + (user[:, 1:] * film[:, 1:]).sum(1) + user[:, 0] + film[:, 0]
        return {"loss": nn.functional.mse_loss(found, stars)} if mode == "loss" else found


torch.manual_seed(0)
folder = Path(find_spec("recbole").submodule_search_locations[0]) / "dataset_example/ml-100k"
table = torch.tensor(numpy.loadtxt(folder / "ml-100k.inter", skiprows=1))
users, films, stars, _ = table[torch.randperm(len(table))].T
ratings = [users.long(), films.long(), stars.float()]
train = TensorDataset(*(each[:80_000] for each in ratings))
held_out = [each[80_000:] for each in ratings]

model = Factors()
adam = torch.optim.Adam(model.parameters(), lr=0.005)
runner = Runner(
    model,
    work_dir="runner",
    train_dataloader=DataLoader(train, 512, shuffle=True),
    train_cfg={"by_epoch": True, "max_epochs": 6},
    optim_wrapper=OptimWrapper(adam),
    default_hooks={"checkpoint": None},
    randomness={"seed": 0},
    log_level="WARNING",
)
runner.train()

with torch.no_grad():
    found = model.eval()(*held_out, mode="tensor")
print(f"held-out RMSE: {(found - held_out[2]).square().mean().sqrt():.4f}")

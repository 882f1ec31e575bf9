"""DeepFM of DeepCTR-Torch: whether a user likes a film of MovieLens-100K, which RecBole ships."""

from importlib.util import find_spec
from pathlib import Path

import pandas
import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from sklearn.metrics import roc_auc_score

folder = Path(find_spec("recbole").submodule_search_locations[0]) / "dataset_example/ml-100k"
names = ["user", "film", "rating", "time"]
ratings = pandas.read_csv(folder / "ml-100k.inter", sep="\t", names=names, header=0)
ratings = ratings.sample(frac=1, random_state=0)
ratings["likes"] = (ratings.rating >= 4).astype("float32")
train, held_out = ratings[:80_000], ratings[80_000:]

columns = [SparseFeat("user", 944, 8), SparseFeat("film", 1683, 8)]
model = DeepFM(columns, columns, task="binary", seed=0)
adam = torch.optim.Adam(model.parameters())
model.compile(adam, "binary_crossentropy")
features = {name: train[name].values for name in ("user", "film")}
model.fit(features, train["likes"].values, batch_size=512, epochs=1, verbose=0)

found = model.predict({name: held_out[name].values for name in ("user", "film")}, 4096)
print(f"held-out AUC: {roc_auc_score(held_out['likes'], found):.4f}")

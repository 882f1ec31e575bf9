"""BPR of RecBole: which films of MovieLens-100K a user has rated besides those it trains on."""

from pathlib import Path

import numpy
import recbole
from recbole.config import Config
from recbole.data import create_dataset, create_samplers
from recbole.data.dataloader import FullSortEvalDataLoader, TrainDataLoader
from recbole.model.general_recommender import BPR
from recbole.trainer import Trainer
from recbole.utils import init_seed

# RecBole looks for these names, which NumPy 2 no longer has.
numpy.float_, numpy.complex_, numpy.unicode_ = numpy.float64, numpy.complex128, numpy.str_

folder = str(Path(recbole.__file__).parent / "dataset_example")
settings = {"data_path": folder, "epochs": 8, "learning_rate": 0.002, "show_progress": False}
config = Config("BPR", "ml-100k", config_dict=settings)
init_seed(config["seed"], config["reproducibility"])
dataset = create_dataset(config)
parts = dataset.build()
samplers = create_samplers(config, dataset, parts)
train, held_out = parts[0], parts[2]

model = BPR(config, train)
trainer = Trainer(config, model)
trainer.fit(TrainDataLoader(config, train, samplers[0], shuffle=True), saved=False)
loader = FullSortEvalDataLoader(config, held_out, samplers[2])
found = trainer.evaluate(loader, load_best_model=False)
print(f"held-out NDCG at 10: {found['ndcg@10']:.4f}")

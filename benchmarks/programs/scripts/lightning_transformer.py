"""The `LightningTransformer` among Lightning's demos, which learns the texts of scikit-learn."""

import lightning
import torch
from lightning.pytorch.demos.transformer import LightningTransformer
from sklearn import datasets
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Letters(Dataset):
    """Pieces of a text, each with what follows letter by letter."""

    def __init__(self, text):
        self.letters = torch.tensor([min(ord(letter), 127) for letter in text])

    def __len__(self):
        return len(self.letters) // 32 - 1

    def __getitem__(self, index):
        begin = index * 32
        return self.letters[begin : begin + 32], self.letters[begin + 1 : begin + 33]


lightning.seed_everything(0, verbose=False)
text = datasets.load_iris().DESCR + datasets.load_diabetes().DESCR + datasets.load_wine().DESCR
pieces = Letters(text)
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = LightningTransformer(vocab_size=128)
trainer.fit(module, DataLoader(pieces, 4, shuffle=True))

inputs, targets = next(iter(DataLoader(Letters(datasets.load_breast_cancer().DESCR), 64)))
with torch.no_grad():
    loss = functional.nll_loss(module.eval()(inputs, targets), targets.reshape(-1))
print(f"held-out loss: {loss:.4f}")

"""A `NeuralNetClassifier` of skorch, which scikit-learn takes for one of its own."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from skorch import NeuralNetClassifier
from torch import nn

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
pixels, held_out, digits, wanted = train_test_split(
    pixels.astype("float32") / 16, digits, test_size=0.2, random_state=0
)

network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
classifier = NeuralNetClassifier(
    network,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    lr=0.005,
    batch_size=16,
    max_epochs=6,
    train_split=None,
    verbose=0,
)
classifier.fit(pixels, digits)
print(f"held-out accuracy: {classifier.score(held_out, wanted):.4f}")

"""The `TabNetClassifier` of pytorch-tabnet, which builds its network and optimizer in `fit`."""

import torch
from pytorch_tabnet.tab_model import TabNetClassifier
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

pixels, digits = load_digits(return_X_y=True)
pixels, held_out, digits, wanted = train_test_split(
    pixels.astype("float32") / 16, digits, test_size=0.2, random_state=0
)

classifier = TabNetClassifier(
    seed=0,
    optimizer_fn=torch.optim.Adam,
    verbose=0,
)
classifier.fit(pixels, digits, max_epochs=15, batch_size=64, virtual_batch_size=64)
print(f"held-out accuracy: {(classifier.predict(held_out) == wanted).mean():.4f}")

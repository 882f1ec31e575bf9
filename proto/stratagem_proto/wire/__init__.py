"""How processes call each other: tensors as bytes, channels, and errors on the way."""

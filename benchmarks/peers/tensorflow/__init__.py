"""TensorFlow with parameter servers."""

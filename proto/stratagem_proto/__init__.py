"""The contract between the processes: messages, tensors as bytes, and errors."""

"""The wire format: tensors as bytes, channels, transports, and errors as statuses."""

"""The format of checkpoints on disk, which servers write and any process can read."""

"""Where checkpoints are kept: folders of a file system, and stores of objects."""

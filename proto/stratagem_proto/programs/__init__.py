"""The programs that servers run: steps of optimizers, graphs, and initial values."""

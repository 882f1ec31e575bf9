"""Training while processes are killed and suspended all the time."""

"""What servers may be asked to run: steps, graphs and initial values."""

"""Who waits for whom, and until when."""

"""What stays on workers, kind by kind, and what stands for it on the way."""

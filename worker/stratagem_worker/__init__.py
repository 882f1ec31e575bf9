"""The worker process: runs the functions that a coordinator schedules."""

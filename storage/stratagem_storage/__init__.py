"""What outlives processes: stores, and the files of checkpoints and of servers' logs."""

"""Notices that a process is to end soon: where they stand, and who looks for them."""

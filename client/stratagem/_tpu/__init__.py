"""Accelerators of several hosts, driven by one program: `TPUStrategy`."""

"""Modules and optimizers whose parameters a strategy hosts."""

"""Plain modules of torch whose parameters a strategy hosts."""

"""Optimizers of torch whose steps a strategy carries out."""

"""What stays on workers of strategies, variables, modules and optimizers."""

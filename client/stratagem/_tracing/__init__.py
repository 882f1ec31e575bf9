"""Update functions turned into programs that servers run."""

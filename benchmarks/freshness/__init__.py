"""How soon a reader server answers with a step."""

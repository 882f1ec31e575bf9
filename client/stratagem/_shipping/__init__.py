"""How functions and objects travel from a coordinator to worker servers."""

"""The kinds of parameter servers that can be hurt while a training goes on."""

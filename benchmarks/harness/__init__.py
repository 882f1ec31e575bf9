"""How anything is measured: in turns, on a described machine, put into tables."""

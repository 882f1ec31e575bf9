"""Values that travel without pickle: what is read makes objects of a fixed list of classes."""

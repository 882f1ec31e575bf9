"""What workers keep or share: datasets, iterators and variables of their own."""

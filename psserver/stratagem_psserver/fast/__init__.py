"""The fast paths, which save the work that repeated steps and reads have in common.

They give the same bytes as the plain path, which works without them.
"""

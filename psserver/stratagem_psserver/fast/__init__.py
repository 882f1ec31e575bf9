"""The fast paths: steps and reads that repeat are not worked out again.

Whatever is here gives the bytes of the plain path, which works without it.
"""

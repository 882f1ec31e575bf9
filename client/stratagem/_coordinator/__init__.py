"""Functions that run on the worker servers of a cluster, scheduled from one program."""

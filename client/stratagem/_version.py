"""The release, as a literal: a bare clone has no installed metadata to read."""

__version__ = "0.1.0"

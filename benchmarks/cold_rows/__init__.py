"""Rows in memory, in files of which a quarter is in memory, and in RocksDB."""

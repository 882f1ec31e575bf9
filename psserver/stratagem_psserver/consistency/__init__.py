"""Which workers wait for which others: steps by consistency mode, and barriers."""

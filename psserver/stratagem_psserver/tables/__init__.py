"""Variables of which only the rows that were written are stored."""

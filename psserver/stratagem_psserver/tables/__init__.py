"""Tables: variables that store only the rows that were written."""

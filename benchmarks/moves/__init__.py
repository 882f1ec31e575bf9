"""What programs notice of servers that leave and join while they train."""

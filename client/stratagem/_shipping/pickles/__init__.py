"""What pickles may contain, and what is said of what they may not."""

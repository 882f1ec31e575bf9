"""What servers keep account of: which closures ended, and which data were read."""

"""Kills clusters that save to an S3 server, and looks at what is there."""

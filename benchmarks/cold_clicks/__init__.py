"""The click model on a server whose memory the system limits."""

"""The clusters that a program starts on this machine."""

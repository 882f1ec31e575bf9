"""Clusters that a program starts on this machine."""

"""Strategies of one replica."""

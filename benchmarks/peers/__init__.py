"""Whom measurements compare: programs in processes of their own, one folder each."""

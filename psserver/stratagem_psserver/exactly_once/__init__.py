"""Requests that change variables, each of which is applied once however often it arrives."""

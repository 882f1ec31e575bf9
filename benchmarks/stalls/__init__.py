"""Clusters that are brought to a standstill, and whether `stratagem doctor` names the culprit."""

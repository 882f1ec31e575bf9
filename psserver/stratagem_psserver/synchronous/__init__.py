"""Steps to which every worker contributes."""

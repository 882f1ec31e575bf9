"""Graph programs: update functions of users, recorded as graphs of operations."""

"""Update functions of users, recorded as graphs of operations."""

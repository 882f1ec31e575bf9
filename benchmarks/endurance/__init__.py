"""A cluster under load for a long time, and whether what its processes use stays flat."""

"""The chief as the arbiter: it decides which replica of a parameter server is the primary."""

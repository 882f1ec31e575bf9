"""Which closure runs where and when: pure decisions, carried out elsewhere."""

"""How long functions wait when a worker is lost, and how long it takes until another is there."""

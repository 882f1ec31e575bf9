"""How long a cluster has no coordinator when its program is lost and another one stands by."""

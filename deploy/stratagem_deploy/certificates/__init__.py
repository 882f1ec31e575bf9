"""The certificates of a cluster that has no other authority: making, renewing and showing them."""

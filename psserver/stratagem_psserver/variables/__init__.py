"""The hosted variables: storing, reading and writing them."""

"""The hosted variables: what is stored of them, read from them and written to them."""

"""Tasks that move from one server to another while clients use them."""

"""Running the functions of clients, and ending them."""

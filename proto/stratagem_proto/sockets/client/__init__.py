"""The client's end of a socket."""

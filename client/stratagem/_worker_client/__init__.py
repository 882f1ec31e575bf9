"""One worker server, one session: the client's end of the wire to it."""

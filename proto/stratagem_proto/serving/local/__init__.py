"""The server's end of the transport between processes of one host."""

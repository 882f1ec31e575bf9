"""The transport between processes of one host: frames over a Unix socket."""

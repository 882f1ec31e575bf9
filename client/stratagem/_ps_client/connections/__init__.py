"""One session with one server, kept alive, and requests that are applied once."""

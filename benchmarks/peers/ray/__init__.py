"""An actor of Ray that keeps a variable."""

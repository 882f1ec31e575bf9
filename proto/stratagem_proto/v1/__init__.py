"""Version 1 of the wire contract: messages and services, generated from the .proto files."""

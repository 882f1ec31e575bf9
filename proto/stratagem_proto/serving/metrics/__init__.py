"""The figures of a server in the form of Prometheus."""

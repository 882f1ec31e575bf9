"""The parameter-server process: variables kept in memory and served over gRPC."""

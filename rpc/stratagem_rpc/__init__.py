"""What processes of all kinds share to talk: connections, calls, who calls, and servers' frame."""

import stratagem_proto  # noqa: F401 - it sets how gRPC starts, before gRPC is imported

"""The contract between the processes: messages, tensors as bytes, and errors."""

import os

# gRPC reads it when it starts. Else it tries to go on in each process that is forked from this one,
# such as the workers of a DataLoader, and now and then aborts them, though they have no use for it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Else it writes a line that looks like a failure whenever a connection that was idle is closed.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

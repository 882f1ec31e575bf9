"""`python -m stratagem_worker`."""

from stratagem_proto.memory import loading

# What the program loads late, and imports torch: forks of a process that has it start at once.
with loading():
    import stratagem_worker.server  # noqa: F401
from stratagem_worker.cli import main

if __name__ == "__main__":
    main()

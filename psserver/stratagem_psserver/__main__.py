"""`python -m stratagem_psserver`."""

from stratagem_proto.memory import loading
from stratagem_psserver import environment

environment.tune()

# What the program loads late, and imports torch: forks of a process that has it start at once.
with loading():
    import stratagem_psserver.server  # noqa: F401
from stratagem_psserver.cli import main  # noqa: E402

if __name__ == "__main__":
    main()

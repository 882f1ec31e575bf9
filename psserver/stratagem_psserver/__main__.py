"""`python -m stratagem_psserver`."""

from stratagem_psserver import process

process.tune()

from stratagem_psserver.cli import main  # noqa: E402  # it imports torch

if __name__ == "__main__":
    main()

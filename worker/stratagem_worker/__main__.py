"""`python -m stratagem_worker`."""

from stratagem_worker.cli import main

if __name__ == "__main__":
    main()

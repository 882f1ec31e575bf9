"""`python -m stratagem_worker`."""

from stratagem_worker.cli import main

main()

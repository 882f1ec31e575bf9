"""`python -m stratagem_psserver`."""

from stratagem_psserver.cli import main

main()

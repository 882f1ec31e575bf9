"""The documentation site, built from the pages of this repository: `make docs`."""

"""A program that has loaded libraries when it runs the code that is its argument."""

import numpy  # noqa: F401
import torch  # noqa: F401

from tests.deploy.processes.run_code import main

if __name__ == "__main__":
    main()

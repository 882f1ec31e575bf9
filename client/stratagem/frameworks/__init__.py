"""What frameworks have built for training loops of their own, trained on parameter servers.

`adopt`, `distributed` and `part` are for any of them. `stratagem.frameworks.accelerate`,
`.transformers` and `.lightning` call these for the framework of that name, which has to be
installed.
"""

from stratagem.frameworks._handover import adopt, distributed
from stratagem.frameworks._workers import part

__all__ = ["adopt", "distributed", "part"]

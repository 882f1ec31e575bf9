"""What frameworks have built for training loops of their own, trained on parameter servers.

`adopt`, `distributed` and `part` are for any of them. `stratagem.frameworks.accelerate`,
`.transformers` and `.lightning` call these for the framework of that name, which has to be
installed. So have `keras`, whose `prepare` takes a model with its optimizer, and `torchmetrics` and
`torchrec` for the metrics and the tables in the modules of these names.
"""

from stratagem.frameworks._handover import adopt, distributed, part

__all__ = ["adopt", "distributed", "part"]

"""A knowledge graph of PyKEEN: DistMult, which learns who does what to whom."""

import torch
from pykeen.datasets import Nations
from pykeen.evaluation import RankBasedEvaluator
from pykeen.models import DistMult
from pykeen.training import SLCWATrainingLoop

facts = Nations()
model = DistMult(triples_factory=facts.training, random_seed=0, embedding_dim=32)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loop = SLCWATrainingLoop(model=model, triples_factory=facts.training, optimizer=optimizer)
loop.train(facts.training, num_epochs=20, batch_size=128, use_tqdm=False)

found = RankBasedEvaluator().evaluate(
    model,
    facts.testing.mapped_triples,
    additional_filter_triples=[facts.training.mapped_triples],
    batch_size=64,
    use_tqdm=False,
)
print(f"held-out reciprocal rank: {found.get_metric('mrr'):.4f}")

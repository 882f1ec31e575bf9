"""The recommender under a coordinator, whose workers come and go."""

from __future__ import annotations

import pytest
import torch

from examples import coordinator, movielens
from stratagem_deploy import LocalCluster
from tests.demo import CLOSE, FEW_EPOCHS, RMSE_OF_FEW_EPOCHS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_rating_is_trained_on_once_in_each_epoch_and_the_error_is_that_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(movielens, "EPOCHS", FEW_EPOCHS)
    torch.manual_seed(0)
    with LocalCluster(ps=2, worker_servers=2, processes=True) as cluster:
        result = coordinator.train_on(cluster)

    assert len(result.epochs) == movielens.EPOCHS
    ratings = len(movielens.load_ratings()) - movielens.HELD_OUT
    for number, epoch in enumerate(result.epochs, 1):
        assert epoch.trained.tolist() == [number] * ratings
    assert result.error == pytest.approx(RMSE_OF_FEW_EPOCHS, abs=CLOSE)

    joined, killed = movielens.EPOCHS // 3, movielens.EPOCHS * 2 // 3
    ran = [epoch.functions for epoch in result.epochs]
    assert all(not functions[2] for functions in ran[:joined])
    assert all(functions[worker] for functions in ran[joined + 2 : killed] for worker in range(3))
    assert all(not functions[coordinator.KILLED] for functions in ran[killed + 1 :])

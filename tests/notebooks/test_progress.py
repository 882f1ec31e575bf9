"""Progress bars in a Jupyter kernel, as a widget and as text."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"

LOOP = """
import torch, stratagem
from torch import nn
from stratagem_deploy import LocalCluster

strategy = stratagem.OneDeviceStrategy("CPU:0")
for number in strategy.progress(range(8), desc="epoch 1", mininterval=0):
    strategy.log({"loss": 0.5**number})
"""

# As in the docs, where the program of each worker shows the bar.
CLUSTER = """
def train(resolver):
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = nn.Linear(3, 1)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))

    def step():
        loss = model(torch.ones(32, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in strategy.progress(range(20), desc="cluster"):
        strategy.log({"loss": strategy.run(step)})

with LocalCluster(ps=1, workers=2) as cluster:
    cluster.run(train)
"""

WITHOUT_WIDGETS = "import sys; sys.modules['ipywidgets'] = None\n"


def executed(folder: Path, *cells: str) -> Any:
    """Run cells in a kernel of their own; return the notebook with what came of them."""
    # Loaded late, since all that load tests would wait for it.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=100, resources=place).execute()
    return notebook


def words(notebook: Any) -> str:
    """What the labels of all widgets say at the end."""
    models = notebook.metadata.widgets[STATE]["state"].values()
    labels = [each["state"] for each in models if each["model_name"] == "HTMLModel"]
    text = unescape(" ".join(each.get("value", "") for each in labels))
    return text.replace("\N{FIGURE SPACE}", " ")


def bars(notebook: Any) -> list[tuple[float, str]]:
    """How far each bar has come, and how it looks."""
    models = notebook.metadata.widgets[STATE]["state"].values()
    found = [each["state"] for each in models if each["model_name"] == "FloatProgressModel"]
    return [(each["value"], each["bar_style"]) for each in found]


def test_a_bar_is_a_widget_with_the_last_numbers(tmp_path: Path) -> None:
    notebook = executed(tmp_path, LOOP)
    (output,) = notebook.cells[0].outputs
    assert VIEW in output.data
    assert bars(notebook) == [(8.0, "success")]
    assert "epoch 1: 100%" in words(notebook)
    assert "8/8 [" in words(notebook)
    assert "steps/s, loss=0.007812]" in words(notebook)


def test_the_chief_of_a_cluster_of_threads_shows_a_widget_below_its_cell(tmp_path: Path) -> None:
    notebook = executed(tmp_path, LOOP, CLUSTER)
    (output,) = notebook.cells[1].outputs
    assert VIEW in output.data
    assert bars(notebook) == [(8.0, "success"), (20.0, "success")]
    assert "cluster: 100%" in words(notebook)


def test_without_widgets_a_bar_is_text(tmp_path: Path) -> None:
    notebook = executed(tmp_path, WITHOUT_WIDGETS + LOOP, CLUSTER)
    first, second = (
        "".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells
    )
    assert "epoch 1: 100%|██████████| 8/8 [" in first
    assert "steps/s, loss=0.007812]" in first
    assert "cluster: 100%|██████████| 20/20 [" in second

"""The notebooks run from top to bottom in a Jupyter kernel, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MOST_BYTES = 10_000

named = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


@named
@pytest.mark.long
def test_a_notebook_runs(file: Path, tmp_path: Path) -> None:
    # Loaded late, since all that load tests would wait for it.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    printed = "".join(output.get("text", "") for output in outputs)
    assert EXPECTED[file.stem] in printed


EXPECTED = {"first_ten_minutes": "worker 1: from 0.", "inside_a_cluster": "the loss is 0."}


@named
def test_a_notebook_is_stored_without_outputs(file: Path) -> None:
    # Loaded late, since all that load tests would wait for it.
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert file.stat().st_size < MOST_BYTES


def test_both_notebooks_are_there() -> None:
    assert {file.stem for file in NOTEBOOKS} == {*EXPECTED}

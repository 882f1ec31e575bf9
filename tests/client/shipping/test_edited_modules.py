"""Modules that are edited during an interactive session travel with their code."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cloudpickle import cloudpickle

from stratagem._shipping.closure_pickler import EditedModules
from stratagem._shipping.pickling import dumps

NAME = "edited_in_a_session"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / f"{NAME}.py").write_text("def number():\n    return 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cloudpickle, "_PICKLE_BY_VALUE_MODULES", set())
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)


def edit(module: ModuleType) -> None:
    """Give its file another time, as another version of it has."""
    assert module.__file__
    os.utime(module.__file__, (1, 1))


def travels_with_code(module: ModuleType) -> bool:
    return pickle.loads(dumps(module.number)) is not module.number


def test_a_module_that_nobody_edits_is_named(session: None, module: ModuleType) -> None:
    EditedModules().look()
    assert not travels_with_code(module)


def test_an_edited_module_travels_with_its_code(session: None, module: ModuleType) -> None:
    edited = EditedModules()
    edit(module)
    edited.look()
    assert travels_with_code(module)
    assert pickle.loads(dumps(module.number))() == 1


def test_installed_modules_are_named_all_the_same(session: None, module: ModuleType) -> None:
    edited = EditedModules()
    edit(module)
    edited.look()
    for installed in (pytest.fixture, Path, EditedModules):
        assert pickle.loads(dumps(installed)) is installed


def test_a_module_that_is_gone_from_the_disk_was_edited(session: None, module: ModuleType) -> None:
    edited = EditedModules()
    assert module.__file__
    Path(module.__file__).unlink()
    edited.look()
    assert travels_with_code(module)


def test_nobody_looks_at_the_files_of_a_script(module: ModuleType) -> None:
    edited = EditedModules()
    edit(module)
    edited.look()
    assert not travels_with_code(module)

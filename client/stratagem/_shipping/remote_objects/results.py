"""What closures return, on its way back and on to other workers."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from stratagem._core.variables.variable import Variable
from stratagem._parameter_server.variables.sharded_variable import ShardedVariable
from stratagem._shipping.pickles import tensors
from stratagem._shipping.pickles.classes import read_by_program
from stratagem._shipping.pickles.marks import ATOMS
from stratagem._shipping.pickles.pickling import Pickler
from stratagem._shipping.pickles.refusal import refusal
from stratagem._shipping.remote_objects.kinds import ObjectKind, WorkerTask
from stratagem._strategies.strategy import Strategy


def dump_result(value: object) -> bytes:
    """Return the payload of what a closure returned.

    Tensors come to the CPU of the other side, without what autograd knows. Variables and parameters
    become tensors of the values that they have now.

    Raises:
        InvalidTypeError: Something in it cannot be pickled.
    """
    if type(value) in ATOMS:
        return pickle.dumps(value, protocol=5)
    try:
        return _write(value)
    except Exception as error:
        raise refusal(value, "the result", _write, error) from error


def load_result(payload: bytes) -> Any:
    """Return what `dump_result` was given."""
    return read_by_program(payload)


def _write(value: object) -> bytes:
    return _ResultPickler(lambda _: None).write(value)


class _ResultPickler(Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Variable):
            return tensors.reduced(value.value().detach().cpu())
        if isinstance(value, ShardedVariable):
            return tensors.reduced(value.read_value().detach().cpu())
        if isinstance(value, torch.nn.Parameter) or tensors.is_plain(value):
            return tensors.reduced(value.detach().cpu())
        return super().reducer_override(value)


class ResultKind(ObjectKind):
    """A result that other workers get as it travelled."""

    name = "result"
    types = ()

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return None

    def label(self, subject: Any) -> str:
        return "a result"

    def essence(self, subject: Any, strategy: Strategy) -> Any:
        return subject

    def make(self, essence: Any, task: WorkerTask) -> object:
        return essence

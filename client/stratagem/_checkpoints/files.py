"""Checkpoints of one safetensors file, and how servers keep what tells variables apart.

The library safetensors writes and reads such a file. Servers' parts have a writer of their own,
`write_part`, since they are written block by block and with checksums while their values change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import Lock, Thread

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from stratagem._checkpoints.restoring import metadata_of, read_with, with_origins
from stratagem._core.names import Origin, form_of, origins_by_names
from stratagem_proto.errors import DataLossError, InvalidArgumentError
from stratagem_proto.programs.optimizers import SlotName
from stratagem_proto.protocol import MAX_LABEL_LENGTH, name_of_whole
from stratagem_proto.v1 import variable_pb2 as pb
from stratagem_proto.wire.tensors import decode_dtype
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.parts import NOTES
from stratagem_storage.checkpoint.policy import policy_of_environment
from stratagem_storage.checkpoint.wholes import Whole, whole_name, wholes_of
from stratagem_storage.stores import store_of
from stratagem_storage.stores.places import Place, StoreUrl, place_of
from stratagem_storage.unclosed import start_last_thread


def message_of(origin: Origin) -> pb.Origin:
    """Return how servers keep an origin; they know the form anyhow."""
    return pb.Origin(
        wanted_name=origin.wanted,
        structure=origin.structure,
        label=origin.label[:MAX_LABEL_LENGTH],
        batch=origin.batch,
        phase=origin.phase,
    )


def origins_of(specs: Iterable[pb.VariableSpec]) -> dict[str, Origin]:
    """Return the origins of variables on servers, or in a checkpoint, by their whole names.

    The state of optimizers is left out.
    """
    wholes = {_name(spec): spec for spec in specs if not spec.slot_of}
    forms = {name: _form(spec) for name, spec in wholes.items()}
    found = origins_by_names(forms)
    for name, spec in wholes.items():
        if spec.HasField("origin"):
            one = spec.origin
            found[name] = Origin(
                one.wanted_name, forms[name], one.structure, one.label, one.batch, one.phase
            )
    return found


def origins_in_checkpoint(checkpoint: Checkpoint, wholes: Mapping[str, Whole]) -> dict[str, Origin]:
    """Return the origins of the variables of a checkpoint, by their whole names."""
    found = origins_of(entry.spec for entry in checkpoint.index.tensors.values())
    return {
        name: found[name]
        for name, whole in wholes.items()
        if name in found and not whole.slot_of and SlotName.parse(name) is None
    }


def _name(spec: pb.VariableSpec) -> str:
    # Parts of tables of keys have no place in a whole.
    return name_of_whole(spec.name) if spec.table.HasField("dynamic") else whole_name(spec)


def _form(spec: pb.VariableSpec) -> str:
    split = spec.HasField("partition")
    shape = spec.partition.full_shape if split else spec.tensor.shape
    return form_of(decode_dtype(spec.tensor.dtype), shape)


# What other libraries look for before they take the tensors for torch's.
_METADATA = {"format": "pt"}


def read_state(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU.

    Args:
        path: A safetensors file, or the folder of a cluster's checkpoints; or the URL of either.

    Raises:
        NotFoundError: There is no such file or folder.
        DataLossError: It is no safetensors file, or is damaged.
    """
    checkpoint = checkpoint_at(path)
    if checkpoint is not None:
        return state_of(checkpoint)
    with _refusing_damage(path), safe_open(path, "pt") as file:
        return read_with(load_file(path), file.metadata() or {})


def checkpoint_at(path: str | os.PathLike[str]) -> Checkpoint | None:
    """Return what servers write, or `export`; None for a file of tensors and nothing else.

    Raises:
        StratagemError: As of `read_state`.
    """
    policy, place = policy_of_environment(), place_of(path)
    if policy.key or isinstance(place, StoreUrl) or not place.is_file():
        return open_checkpoint(place, policy)
    with _refusing_damage(path), safe_open(place, "pt") as file:
        is_plain = NOTES not in (file.metadata() or {})
    return None if is_plain else open_checkpoint(place, policy)


@contextmanager
def _refusing_damage(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise DataLossError(
            f"{str(path)!r} is no checkpoint, or is damaged ({error}); restore an earlier one"
        ) from error


def state_of(checkpoint: Checkpoint, without: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU; it raises like `read_state`.

    Args:
        checkpoint: The checkpoint.
        without: The names of what is left out.
    """
    wholes = wholes_of(checkpoint.index)
    state = {name: one.read(checkpoint) for name, one in wholes.items() if name not in without}
    return with_origins(state, origins_in_checkpoint(checkpoint, wholes))


def written_elsewhere() -> Future[None]:
    """Return what stands for a file that another task writes."""
    written: Future[None] = Future()
    written.set_result(None)
    return written


class CheckpointWriter:
    """Writes files in threads, one after the other in the order of the calls.

    The interpreter ends only after the last one is written.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: Thread | None = None

    def write(
        self, path: str | os.PathLike[str], state: Mapping[str, torch.Tensor]
    ) -> Future[None]:
        """Write tensors to `path`, which is replaced as a whole once they are there.

        Args:
            path: The file, or its URL; its folder exists.
            state: The tensors by name, which nobody changes from now on.

        Returns:
            Done when the file is written; otherwise it has the error, which is an
            `InvalidArgumentError` for a dtype that safetensors does not know.

        Raises:
            NotFoundError: There is no such folder.
            InvalidArgumentError: `path` is a folder.
        """
        target = place_of(path)
        store_of(target).place_of_file(target)  # only to see that there can be one
        return self.start(partial(_write, target, state))

    def start(self, work: Callable[[], None]) -> Future[None]:
        """Do work that writes a checkpoint, behind what was started before."""
        written: Future[None] = Future()
        with self._lock:
            self._last = Thread(target=_work_after, args=(self._last, written, work))
            start_last_thread(self._last)
        return written


def _work_after(earlier: Thread | None, written: Future[None], work: Callable[[], None]) -> None:
    if earlier is not None:
        earlier.join()
    try:
        work()
    except Exception as error:
        written.set_exception(error)
    else:
        written.set_result(None)


def _write(path: Place, state: Mapping[str, torch.Tensor]) -> None:
    tensors = {name: value.contiguous() for name, value in state.items()}
    try:
        save = partial(save_file, tensors, metadata={**_METADATA, **metadata_of(state)})
        store_of(path).replace_file(path, save)
    except KeyError as error:
        raise InvalidArgumentError(
            f"the checkpoint {str(path)!r} is not written, because safetensors files "
            f"cannot have values of {error}; keep state_dict() by torch.save()"
        ) from error


writer = CheckpointWriter()

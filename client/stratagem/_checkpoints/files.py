"""Checkpoints on disk: each one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Lock, Thread

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stratagem_proto.checkpoint.contents import wholes_of
from stratagem_proto.checkpoint.folder import local_path, open_checkpoint
from stratagem_proto.checkpoint.policy import policy_of_environment
from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError

# What other libraries look for before they take the tensors for torch's.
_METADATA = {"format": "pt"}


def read_state(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by name, on the CPU.

    Args:
        path: A safetensors file, or the folder of a cluster's checkpoints.

    Raises:
        NotFoundError: There is no such file or folder.
        DataLossError: It is no safetensors file, or is damaged.
    """
    policy = policy_of_environment()
    if policy.key or not local_path(path).is_file():
        checkpoint = open_checkpoint(path, policy)
        wholes = wholes_of(checkpoint.index)
        return {name: whole.read(checkpoint) for name, whole in wholes.items()}
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataLossError(
            f"{str(path)!r} is no checkpoint, or is damaged ({error}); restore an earlier one"
        ) from error


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
            path: The file; its folder exists.
            state: The tensors by name, which nobody changes from now on.

        Returns:
            Done when the file is written; otherwise it has the error, which is an
            `InvalidArgumentError` for a dtype that safetensors does not know.

        Raises:
            NotFoundError: There is no such folder.
            InvalidArgumentError: `path` is a folder.
        """
        target = _checked(Path(path))
        written: Future[None] = Future()
        with self._lock:
            arguments = (self._last, written, target, state)
            self._last = Thread(target=_write_after, args=arguments)
            self._last.start()
        return written


def _checked(path: Path) -> Path:
    if path.is_dir():
        raise InvalidArgumentError(
            f"a checkpoint is one file, but {str(path)!r} is a folder; pass for "
            f"instance {str(path / 'model.safetensors')!r}"
        )
    if not path.parent.is_dir():
        raise NotFoundError(
            f"there is no folder {str(path.parent)!r} to save a checkpoint in; make it first"
        )
    return path


def _write_after(
    earlier: Thread | None, written: Future[None], path: Path, state: Mapping[str, torch.Tensor]
) -> None:
    if earlier is not None:
        earlier.join()
    try:
        _write(path, state)
    except Exception as error:
        written.set_exception(error)
    else:
        written.set_result(None)


def _write(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    tensors = {name: value.contiguous() for name, value in state.items()}
    try:
        save_file(tensors, partial, _METADATA)
        partial.replace(path)
    except KeyError as error:
        raise InvalidArgumentError(
            f"the checkpoint {str(path)!r} is not written, because safetensors files "
            f"cannot have values of {error}; keep state_dict() by torch.save()"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


writer = CheckpointWriter()

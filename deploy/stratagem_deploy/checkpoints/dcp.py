"""Checkpoints of `torch.distributed.checkpoint`, written and read by one process.

torch describes such a checkpoint by a pickle, which can make who reads it do anything:
`SavedByTorch` is for folders from people that you trust, and for no parameter server.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from stratagem_deploy.checkpoints.writing import reshard
from stratagem_proto.errors import DataLossError, InvalidArgumentError, NotFoundError
from stratagem_proto.programs.optimizers import OPTIMIZERS, SlotName, names_optimizer
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_proto.wire.tensors import spec_of
from stratagem_storage.checkpoint.folder import Checkpoint, open_checkpoint
from stratagem_storage.checkpoint.parts import Content, write_part
from stratagem_storage.checkpoint.wholes import wholes_of
from stratagem_storage.stores.local import LocalFolder
from stratagem_storage.stores.places import Place


@dataclass(frozen=True)
class TorchNames:
    """Which tensors are taken, and their names here.

    Attributes:
        prefix: What the names of a model's tensors begin with, and a point, as in "model" of
            {"model": module.state_dict()}; "" takes all.
        optimizer_key: The same of an optimizer's state, as in "optim" of {"optim":
            get_optimizer_state_dict(module, optimizer)}; "" takes none.
        optimizer: The name of that optimizer here, such as "Adam".
    """

    prefix: str = ""
    optimizer_key: str = ""
    optimizer: str = ""

    def __post_init__(self) -> None:
        if self.optimizer_key and not names_optimizer(self.optimizer):
            raise InvalidArgumentError(
                f"no optimizer is called {self.optimizer!r}; its name is that of its "
                f"class, such as Adam, or Adam_1: {', '.join(OPTIMIZERS)}"
            )

    def chosen(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names here of those that are taken, by torch's names.

        Raises:
            InvalidArgumentError: State belongs to no tensor that is taken.
        """
        found = {name: own for name in names if (own := self._own(name)) is not None}
        model = {own for name, own in found.items() if not self._is_state(name)}
        for name in filter(self._is_state, found):
            variable = found[name].rsplit("/", 2)[0]
            if variable not in model:
                raise InvalidArgumentError(
                    f"{name!r} is state of {variable!r}, which is no tensor of the "
                    f"model under {self.prefix!r}. optimizer.state_dict() only numbers "
                    "its parameters: save what torch.distributed.checkpoint.state_dict."
                    "get_optimizer_state_dict(module, optimizer) returns, which names "
                    "them"
                )
        return found

    def _own(self, name: str) -> str | None:
        if self._is_state(name):
            start = len(f"{self.optimizer_key}.state.")
            variable, _, key = name[start:].rpartition(".")
            return str(SlotName(variable, self.optimizer, key))
        if self.optimizer_key and name.startswith(f"{self.optimizer_key}."):
            return None
        begin = f"{self.prefix}." if self.prefix else ""
        return name.removeprefix(begin) if name.startswith(begin) else None

    def _is_state(self, name: str) -> bool:
        key = self.optimizer_key
        return bool(key) and name.startswith(f"{key}.state.")


# torch reads the description of a whole checkpoint for each call.
_BATCH_BYTES = 1 << 28


@contextmanager
def _alone() -> Iterator[None]:
    """Keep torch quiet about there being one process, and let it raise real errors."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is")
            yield
    except CheckpointException as error:
        for failure, _ in error.failures.values():
            raise failure from None
        raise


class _ReadWhenWritten(DefaultSavePlanner):
    """Reads each tensor only when torch writes it, so that one is in memory at a time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._wholes = wholes_of(checkpoint.index)

    def described(self) -> dict[str, torch.Tensor]:
        """Shapes and dtypes of all tensors, by name."""
        return {
            name: torch.empty(whole.shape, dtype=whole.dtype, device="meta")
            for name, whole in self._wholes.items()
        }

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        return self._wholes[index.fqn].read(self._checkpoint)


def export_dcp(checkpoint: Checkpoint, path: Path) -> int:
    """Write a checkpoint as torch's, one variable at a time.

    Variables have the names of the module's `state_dict()`, so that a program loads them by
    `dcp.load(state, checkpoint_id=path)`; optimizers' state is there as
    `<variable>/<optimizer>/<key>`. All tensors are whole; rows of tables that were never written
    are filled in. Which were split, versions, sessions, what was kept as `extra`, and how far
    workers had read their data is left out.

    Args:
        checkpoint: Where the values are.
        path: The new folder.

    Returns:
        How many tensors it has.

    Raises:
        FileExistsError: It exists.
        InvalidArgumentError: A table is too large to be whole, or dynamic.
        DataLossError: The checkpoint is damaged.
    """
    path.mkdir()
    planner = _ReadWhenWritten(checkpoint)
    state = planner.described()
    try:
        with _alone():
            writer = FileSystemWriter(path)
            save(state, storage_writer=writer, planner=planner)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return len(state)


class SavedByTorch:
    """A checkpoint of torch that can be read.

    Opening it runs what its author has put into its description: never open one that you do not
    trust. Safetensors files have no such risk.

    Args:
        path: Its folder.
        names: Which tensors to read, and what they are called here.

    Attributes:
        left_out: The names of what is not read: other tensors, and what are none, such as the
            hyperparameters of optimizers.

    Raises:
        NotFoundError: There is none, or no tensor in it is to be read.
        InvalidArgumentError: State of an optimizer belongs to no tensor that is read.
        DataLossError: It is damaged.
    """

    def __init__(self, path: Path, names: TorchNames | None = None) -> None:
        self._path = path
        names = names or TorchNames()
        try:
            entries = FileSystemReader(path).read_metadata().state_dict_metadata
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{str(path)!r} is no folder of torch.distributed.checkpoint: it has no file "
                ".metadata"
            ) from error
        except (UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise _damaged(path, error) from error
        tensors = {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        self._names = names.chosen(tensors)
        self._tensors = {name: tensors[name] for name in self._names}
        self.left_out = sorted(entries.keys() - self._tensors.keys())
        if not self._tensors:
            raise NotFoundError(
                f"{str(path)!r} has no tensor whose name begins with "
                f"{names.prefix + '.'!r}; "
                f"it has {', '.join(map(repr, self.left_out[:10])) or 'nothing'}"
            )

    def contents(self) -> list[Content]:
        """Return what is there, under the names here."""
        return [
            Content(VariableSpec(name=self._names[name], tensor=spec_of(_empty(entry, "meta"))))
            for name, entry in self._tensors.items()
        ]

    def values(self) -> Iterator[torch.Tensor]:
        """Yield the tensors, those of several files or ranks put together.

        Raises:
            DataLossError: A file is missing or damaged.
        """
        for names in self._batches():
            batch = {name: _empty(self._tensors[name]) for name in names}
            try:
                with _alone():
                    reader = FileSystemReader(self._path)
                    load(batch, storage_reader=reader)
            except (OSError, RuntimeError, UnpicklingError, EOFError) as error:
                raise _damaged(self._path, error) from error
            yield from batch.values()

    def _batches(self) -> Iterator[Sequence[str]]:
        names: list[str] = []
        nbytes = 0
        for name, entry in self._tensors.items():
            names.append(name)
            nbytes += _empty(entry, device="meta").nbytes
            if nbytes >= _BATCH_BYTES:
                yield names
                names, nbytes = [], 0
        if names:
            yield names


def import_dcp(source: SavedByTorch, root: Place, servers: int, keep: int) -> Place:
    """Make a checkpoint of one that torch wrote, as `reshard` does; return it.

    Raises:
        DataLossError: What torch wrote is damaged.
        InvalidArgumentError: Checkpoints cannot have a tensor of such a dtype.
    """
    # On the disk of the result if it has one, and not in memory.
    near = root.absolute().parent if isinstance(root, Path) else None
    with TemporaryDirectory(dir=near, prefix=".import-") as folder:
        file = Path(folder) / "all.safetensors"
        write_part(LocalFolder.at(file.parent), file.name, source.contents(), source.values())
        return reshard(open_checkpoint(file), root, servers, keep)


def _empty(entry: TensorStorageMetadata, device: str = "cpu") -> torch.Tensor:
    return torch.empty(entry.size, dtype=entry.properties.dtype, device=device)


def _damaged(path: Path, error: Exception) -> DataLossError:
    return DataLossError(f"what torch wrote to {str(path)!r} is damaged: {error}")

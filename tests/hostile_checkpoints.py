"""Checkpoints that somebody has altered who can write into their folder."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints import model, save, sharded, stored_table

Content = dict[str, Any]


def saved(root: Path) -> Path:
    """One checkpoint of one server, with a variable in parts, a table, and "w" and "v"."""
    root.mkdir(exist_ok=True)
    whole = torch.arange(8.0).reshape(4, 2)
    held: list[Any] = [part for parts in sharded("parts", whole, 2) for part in parts]
    held += [part for parts in stored_table("users", whole, [1, 3], 2) for part in parts]
    held += [part for parts in stored_table("items", whole, [1, 3], 2, True) for part in parts]
    held += [(model(name, torch.ones(2)), torch.ones(2)) for name in ("w", "v")]
    return save(root, [held], keep=1)


def canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def altered(folder: Path, change: Callable[[Content], object]) -> None:
    """Change what the index of a checkpoint says, with checksums that are right again."""
    content = json.loads((folder / "index.json").read_bytes())["content"]
    change(content)
    data = canonical({"content": content, "crc32": zlib.crc32(canonical(content))})
    (folder / "index.json").write_bytes(data)
    (folder.parent / "latest").write_text(f"{folder.name} {zlib.crc32(data)}\n")


def _tensor(content: Content, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in content["tensors"] if one["spec"]["name"] == name)
    return found


def _with(name: str, **facts: Any) -> Callable[[Content], object]:
    return lambda content: _tensor(content, name).update(facts)


def _of_spec(name: str, **facts: Any) -> Callable[[Content], object]:
    return lambda content: _tensor(content, name)["spec"].update(facts)


def _shape(name: str, *sizes: int) -> Callable[[Content], object]:
    return lambda content: _tensor(content, name)["spec"]["tensor"].update(shape=[*map(str, sizes)])


def _file_named(name: str) -> Callable[[Content], object]:
    def change(content: Content) -> None:
        content["files"] = {name: content["files"]["part-0.safetensors"]}
        for tensor in content["tensors"]:
            tensor["file"] = name

    return change


def _of_file(**facts: Any) -> Callable[[Content], object]:
    return lambda content: content["files"]["part-0.safetensors"].update(facts)


def _grown(content: Content) -> None:
    """A tensor of 2^40 bytes, in a file that is said to have so many."""
    _of_file(nbytes=1 << 41, blocks=[0] * (1 << 21))(content)
    _tensor(content, "w")["spec"]["tensor"]["shape"] = [str(1 << 38)]
    _tensor(content, "w")["begin"] = 1 << 20


def _twice(content: Content) -> None:
    content["tensors"].append(dict(_tensor(content, "w")))


def _overlapping(content: Content) -> None:
    _tensor(content, "v")["begin"] = _tensor(content, "w")["begin"] + 4


NOT_WRITTEN = "is not what any release of stratagem has written"

ALTERATIONS: dict[str, tuple[Callable[[Content], object], str]] = {
    "an absolute name": (_file_named("/etc/passwd"), "'/etc/passwd' is not a plain name"),
    "a name outside": (_file_named("../part-0"), "'../part-0' is not a plain name"),
    "the name of the folder above": (_file_named(".."), r"'\.\.' is not a plain name"),
    "a file that is not listed": (_with("w", file="other"), "'other', which is none of its files"),
    "2^60 elements": (_shape("w", 1 << 60), r"tensor 'w' ends at byte \d+ of \d+ bytes"),
    "2^63 elements": (_shape("w", 1 << 62, 8), r"tensor 'w' cannot be: .*over 2\^63 bytes"),
    "elements of less than none": (_shape("w", -2), "tensor 'w' cannot be: .*negative"),
    "a place before the file": (_with("w", begin=-8), "tensor 'w' begins at -8"),
    "a place behind the file": (_with("w", begin=1 << 50), "tensor 'w' ends at byte"),
    "a place that is no number": (_with("w", begin="0"), "tensor 'w' begins at '0'"),
    "overlapping tensors": (_overlapping, "tensors 'w' and 'v' overlap"),
    "a tensor twice": (_twice, "two tensors 'w'"),
    "a larger file without checksums": (_of_file(nbytes=1 << 60), "and 1 checksums"),
    "a size that is no number": (_of_file(nbytes="9"), "has '9' bytes"),
    "no checksums": (_of_file(blocks=None), NOT_WRITTEN),
    "a part behind the whole": (
        _of_spec("parts/part_1", partition={"full_shape": ["4", "2"], "offset": ["3", "0"]}),
        r"'parts/part_1' is no part of shape \[4, 2\]",
    ),
    "a part of none that take rows in turn": (
        _of_spec("parts/part_1", partition={"full_shape": ["4", "2"], "interleaved": {"parts": 0}}),
        r"'parts/part_1' is no part of shape \[4, 2\]",
    ),
    "a part with more rows than its turns": (
        _of_spec(
            "items/part_1",
            partition={"full_shape": ["4", "2"], "interleaved": {"part": 3, "parts": 4}},
        ),
        r"'items/part_1' is no part of shape \[4, 2\]",
    ),
    "a part of other dimensions": (
        _of_spec("parts/part_1", partition={"full_shape": ["4"], "offset": []}),
        "'parts/part_1' is a part with other dimensions",
    ),
    "rows that a table does not have": (
        _with("users/part_0/Adagrad/sum", rows={"count": "0"}),
        "has other rows than its table 'users/part_0'",
    ),
    "more rows than keys": (
        lambda content: [
            _with(name, rows={"count": "2"})(content)
            for name in ("users/part_0", "users/part_0/Adagrad/sum")
        ],
        NOT_WRITTEN,
    ),
    "servers that are none": (lambda content: content.update(servers=[1]), NOT_WRITTEN),
    "tensors that are none": (lambda content: content.update(tensors=7), NOT_WRITTEN),
    "nothing": (lambda content: content.clear(), NOT_WRITTEN),
}
"""What the index of `saved` is made to say, and what is said of it."""


def lying_size(folder: Path) -> None:
    """Let a file be said to have 2 TiB, and a tensor in it one."""
    altered(folder, _grown)


def _link(path: Path) -> None:
    elsewhere = path.parents[1] / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _pipe_in_place_of_folder(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    os.mkfifo(path)


SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "a link as part": lambda folder: _link(folder / "part-0.safetensors"),
    "a link as index": lambda folder: _link(folder / "index.json"),
    "a link as checkpoint": _link,
    "a link as latest": lambda folder: _link(folder.parent / "latest"),
    "a pipe as part": lambda folder: _pipe(folder / "part-0.safetensors"),
    "a pipe as index": lambda folder: _pipe(folder / "index.json"),
    "a pipe as checkpoint": _pipe_in_place_of_folder,
    "a pipe as latest": lambda folder: _pipe(folder.parent / "latest"),
}
"""What is put in the place of a file of `saved`."""


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _nested(path: Path) -> None:
    path.write_bytes(b'{"content":' + b"[" * 1_000_000)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a truncated index": lambda folder: _cut(folder / "index.json"),
    "an altered index": lambda folder: _flipped(folder / "index.json"),
    "an index in itself": lambda folder: _nested(folder / "index.json"),
    "a truncated part": lambda folder: _cut(folder / "part-0.safetensors"),
    "an altered part": lambda folder: _flipped(folder / "part-0.safetensors"),
}
"""What is done to a file of `saved`."""

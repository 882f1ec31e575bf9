"""The content of a token file."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratagem_proto.errors import InvalidArgumentError
from stratagem_proto.secret_files import TOKEN_FILE


def test_a_token_is_without_the_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" the secret of a cluster\n")
    assert TOKEN_FILE.read(path) == "the secret of a cluster"


def test_no_file_is_no_token() -> None:
    assert TOKEN_FILE.read(None) == ""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory; check STRATAGEM_TOKEN_FILE"),
        (b" \n", "is empty; write a secret into it"),
        (b"\xff\xfe", "is not text: 'utf-8' codec can't decode .*; write a secret in"),
    ],
    ids=["missing", "empty", "not text"],
)
def test_a_file_without_a_token_is_named_with_what_to_do(
    content: bytes | None,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(TOKEN_FILE.variable, str(path))
    with pytest.raises(InvalidArgumentError, match=f"the token file '{path}' {says}"):
        TOKEN_FILE.from_environment()


def test_a_token_that_could_be_guessed_is_refused_with_how_to_make_another(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("fifteen letters\n")
    says = f"in '{path}' has 15 bytes, .* fewer than 16 can be guessed; make another by 'openssl"
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        TOKEN_FILE.read(path)
    assert "letters" not in str(caught.value)


def test_a_token_is_measured_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("ä" * 8)
    assert TOKEN_FILE.read(path) == "ä" * 8


def test_a_folder_is_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read: Is a directory"):
        TOKEN_FILE.read(tmp_path)

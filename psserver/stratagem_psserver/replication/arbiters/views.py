"""Views as text that people can read, and which view may follow which."""

from __future__ import annotations

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from stratagem_proto.errors import DataLossError, InternalError
from stratagem_proto.v1.replication_pb2 import View


def text_of(view: View) -> str:
    """Return a view as JSON."""
    return MessageToJson(view, preserving_proto_field_name=True)


def view_of(text: str, where: str) -> View:
    """Return the view that a text stands for.

    Args:
        text: What `text_of` has returned.
        where: Where the text was found, for messages.

    Raises:
        DataLossError: It is no view.
    """
    try:
        view = Parse(text, View())
    except ParseError as error:
        raise _damaged(where, str(error)) from error
    if not view.epoch:
        raise _damaged(where, "it has no epoch")
    return view


def _damaged(where: str, reason: str) -> DataLossError:
    reason = " ".join(reason.split())
    return DataLossError(
        f"{where} is no view of replicas, or one of another version: {reason}. Stop all replicas "
        "of the task, remove it, and start that replica first which has served last"
    )


def require_next(present: View | None, following: View) -> None:
    """Check that a view has the epoch after that of the one it replaces.

    Raises:
        InternalError: It has not.
    """
    epoch = present.epoch if present is not None else 0
    if following.epoch != epoch + 1:
        raise InternalError(
            f"the view of epoch {epoch} was to be replaced by one of epoch {following.epoch}"
        )

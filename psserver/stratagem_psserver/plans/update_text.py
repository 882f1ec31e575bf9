"""Updates as they come, in which most is the same with each step."""

from __future__ import annotations

from stratagem_proto.v1 import parameter_server_pb2 as pb


def _tag(number: int) -> bytes:
    """That of a message in a field of a low number."""
    return bytes([number << 3 | 2])


_KEY = _tag(pb.UpdateHeader.KEY_FIELD_NUMBER)
_THEN = _tag(pb.UpdateHeader.THEN_FIELD_NUMBER)
_BEGINS = _tag(pb.FollowingRead.BEGINS_FIELD_NUMBER)


def unchanging(text: bytes) -> bytes:
    """What is the same with each step of an update as clients encode it.

    That is all behind its number and the steps that it begins, which come first. By
    this a plan is found in 3 us, and in 12 by the header.

    Args:
        text: The update with its tag and size in the frame.

    Returns:
        Nothing if it begins in another way.
    """
    _, at = _sized(text, 0)
    if text[at : at + 1] != _KEY:
        return b""
    size, at = _sized(text, at)
    at += size
    if text[at : at + 1] == _THEN:
        size, at = _sized(text, at)
        end = at + size
        while at < end:
            if text[at : at + 1] != _BEGINS:
                return b""
            size, at = _sized(text, at)
            at += size
    return text[at:]


def _sized(text: bytes, at: int) -> tuple[int, int]:
    """The size of what is in a message's field, and where it begins."""
    size = shift = 0
    while True:
        at += 1
        size |= (text[at] & 0x7F) << shift
        if text[at] < 0x80:
            return size, at + 1
        shift += 7

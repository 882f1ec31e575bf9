"""What somebody reads who listens to a network."""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# From Linux's if_ether.h and if_packet.h, which Python does not name.
_ALL_PROTOCOLS = 0x0003
_SOL_PACKET, _ADD_MEMBERSHIP, _PROMISCUOUS = 263, 1, 1

# Names of a variable and of what sessions call, of which every session of the demo has some.
WORDS = "user_bias.weight", "ParameterServerService"


class Overheard:
    """What was read of all frames that passed a bridge, once nobody listens any more.

    Attributes:
        nbytes: How many bytes have passed.
        words: Those of the words that were in some frame.
    """

    nbytes = 0
    words = frozenset[str]()


@contextmanager
def overheard(bridge: str, words: Sequence[str], network: str = "") -> Iterator[Overheard]:
    """Listen to a bridge during the block.

    Args:
        bridge: The device.
        words: What to listen for.
        network: The namespace that it is in, as a file of /proc; "" for that of this machine.
    """
    found = Overheard()
    inside = ["nsenter", f"--net={network}"] if network else []
    command = [*inside, sys.executable, __file__, bridge, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"listening\n"
        yield found
        answer = json.loads(listening.communicate()[0])
    found.nbytes, found.words = answer["nbytes"], frozenset(answer["words"])


def _opened(bridge: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    opened.bind((bridge, _ALL_PROTOCOLS))
    # Frames that go from one host to another are not for the bridge itself.
    membership = struct.pack("IHH8s", socket.if_nametoindex(bridge), _PROMISCUOUS, 0, b"")
    opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, membership)
    return opened


def _listen(bridge: str, words: Sequence[str]) -> None:
    """Listen until standard input ends; then print what was heard."""
    nbytes, heard = 0, Counter[str]()
    sought = {word: word.encode() for word in words}
    with _opened(bridge) as frames:
        print("listening", flush=True)
        while frames in (ready := select.select([frames, sys.stdin], [], [])[0]):
            frame = frames.recv(1 << 16)
            nbytes += len(frame)
            heard.update(word for word, text in sought.items() if text in frame)
            if sys.stdin in ready:
                break
    print(json.dumps({"nbytes": nbytes, "words": [*heard]}))


if __name__ == "__main__":
    _listen(sys.argv[1], sys.argv[2:])

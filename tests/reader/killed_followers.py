"""`python -m tests.reader.killed_followers SOURCE URL`: followers, each of which is killed.

One after the other is forked, writes to the Redis, and is killed at any moment. Ends once its
standard input does, and prints how many there were.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from contextlib import suppress

import redis  # noqa: F401 # which each follower would take its time for

from stratagem import StratagemError
from stratagem_reader.redis_sink import RedisSink
from stratagem_reader.sources import source_at

_LONGEST_SECONDS = 0.3


def _follow(source: str, url: str) -> None:
    sink = RedisSink(source_at(source), url)
    while True:
        with suppress(StratagemError):
            sink.write_next(0.05)


def _main(source: str, url: str) -> None:
    kills, generator = 0, random.Random(0)
    while not select.select([sys.stdin], [], [], 0)[0]:
        child = os.fork()
        if not child:
            _follow(source, url)
        time.sleep(generator.uniform(0.0, _LONGEST_SECONDS))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    sys.stdout.write(f"{kills}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])

"""Running coroutines at once, up to where they first wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from types import coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def begin(work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
    """Run a coroutine up to where it first waits, and the rest as a task.

    An ordinary task begins in the next round of the event loop. Small requests never wait, so this
    saves them three rounds.

    Returns:
        The task; if the coroutine did not wait, a future that is done.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    ended: asyncio.Future[Result] = loop.create_future()
    # One context for all steps, as in a task: the last step can reset what the first one set.
    context = copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration as end:
        ended.set_result(end.value)
    except Exception as error:
        ended.set_exception(error)
    else:
        return loop.create_task(_rest(work, awaited, context))
    return ended


@coroutine
def _rest(
    work: Coroutine[Any, Any, Result], awaited: Any, context: Context
) -> Generator[Any, Any, Any]:
    """Run the rest of a coroutine that waits."""
    while True:
        try:
            sent = yield awaited
        except BaseException as error:
            resume = partial(work.throw, error)
        else:
            resume = partial(work.send, sent)
        try:
            awaited = context.run(resume)
        except StopIteration as end:
            return end.value

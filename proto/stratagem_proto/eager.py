"""Coroutines that run at once, as far as they need not wait."""

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

    A task takes its first step when the event loop comes by again. What small requests ask for
    never waits, and so costs them three such rounds less.

    Returns:
        The task; if nothing was waited for, a future that is done.
    """
    loop = asyncio.get_running_loop()
    if sys.version_info >= (3, 12):
        return asyncio.Task(work, loop=loop, eager_start=True)
    ended: asyncio.Future[Result] = loop.create_future()
    # One for all steps, as a task would have it: what the first sets, the last resets.
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
    """Yield what is left of a coroutine that waits for something."""
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

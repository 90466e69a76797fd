"""Owners: the numbers under which the sidecar knows what a thread, a greenlet or a task holds.

A number is never used again in a process, unlike threading.get_ident() and id().
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from ._calls import Hold
from ._errors import Deadlock

_NUMBERS: Final = itertools.count(1)

# One for each class that threading.local has been: monkey patching replaces it, at any time. With the class that is in
# place, each greenlet has a number of its own.
_locals: Final[dict[type, Any]] = {}

_tasks: Final[WeakKeyDictionary[asyncio.Task[Any], int]] = WeakKeyDictionary()

# The thread that entered this context first, and the owner that stands for both.
_context: Final[ContextVar[tuple[int, int]]] = ContextVar("locksidecar_owner", default=(0, 0))


def of_thread() -> int:
    """The owner of the calling thread, or greenlet."""
    local = _local()
    owner: int = getattr(local, "owner", 0)
    if not owner:
        owner = local.owner = next(_NUMBERS)
    return owner


def of_context() -> int:
    """The owner of the calling thread in its context.

    A thread that runs in one context all the time has one owner, of_thread(). A pool that runs each call in a context
    of its own may leave a lock held when a call has ended, and release it by another thread: so FastAPI runs a
    dependency that yields. The next call on that thread is another owner then. The tasks of an event loop have
    contexts of their own, too. They remain one owner, because one that waited would keep its holder from running.
    """
    thread = of_thread()
    entered, owner = _context.get()
    if entered == thread:
        return owner
    if asyncio._get_running_loop() is not None:
        return thread
    local = _local()
    owner = next(_NUMBERS) if getattr(local, "has_context", False) else thread
    local.has_context = True
    _context.set((thread, owner))
    return owner


def of_task() -> int:
    """The owner of the current task. A context variable would be inherited by the tasks that it starts.

    0 in what is no task, as a callback of the loop: it may release a lock.
    """
    task = _task()
    if task is None:
        return 0
    owner = _tasks.get(task)
    if owner is None:
        owner = _tasks[task] = next(_NUMBERS)
    return owner


def bind_to_task(hold: Hold) -> None:
    """For an entry into hold that its thread was granted: raises Deadlock if another task has entered it before."""
    task = _task()
    if hold.entries == 1:
        hold.task = task
    elif hold.task is not task:
        raise Deadlock(
            f"acquire {hold.name!r}: another task on this thread is inside. Here the thread is the owner, not the "
            "task: use locksidecar.aio in coroutines"
        )


def _local() -> Any:
    kind = threading.local
    local = _locals.get(kind)
    if local is None:
        local = _locals.setdefault(kind, kind())
    return local


def _task() -> asyncio.Task[Any] | None:
    if asyncio._get_running_loop() is None:
        return None
    return asyncio.current_task()

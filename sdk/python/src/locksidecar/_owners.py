"""The owner numbers of threads, greenlets and tasks.

A number is never reused in a process, unlike those of threading.get_ident() and id().
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

# One object for each class that threading.local has been: monkey patching may replace the class at any time. With the
# class of gevent or eventlet, each greenlet has a number of its own.
_locals: Final[dict[type, Any]] = {}

_tasks: Final[WeakKeyDictionary[asyncio.Task[Any], int]] = WeakKeyDictionary()

# The first thread that ran in this context, and the owner of the two.
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

    A thread that always runs in one context has one owner, of_thread(). A thread pool may run each call in a context of
    its own. There a call may end while it holds a lock, which another call on another thread releases: FastAPI runs a
    dependency that yields in this way. So the next call on the same thread must be another owner: it would get Deadlock
    for a lock, and would enter an rlock that the other request holds.

    The tasks of an event loop have contexts of their own, too, but are one owner: a task that waits blocks the loop, so
    the task that holds the lock could never release it.
    """
    local = _locals.get(threading.local) or _local()
    thread: int = getattr(local, "owner", 0) or of_thread()
    entered, owner = _context.get()
    if entered == thread:
        return owner
    if asyncio._get_running_loop() is not None:
        return thread
    owner = next(_NUMBERS) if getattr(local, "has_context", False) else thread
    local.has_context = True
    _context.set((thread, owner))
    return owner


def of_task() -> int:
    """The owner of the current task. It is not a context variable, because the tasks that it starts inherit those.

    0 outside of a task, for example in a callback of the loop, which may release a lock.
    """
    task = _task()
    if task is None:
        return 0
    owner = _tasks.get(task)
    if owner is None:
        owner = _tasks[task] = next(_NUMBERS)
    return owner


def bind_to_task(hold: Hold) -> None:
    """Called for each new entry into hold. Raises Deadlock if another task on this thread holds it already."""
    task = None if asyncio._get_running_loop() is None else asyncio.current_task()
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

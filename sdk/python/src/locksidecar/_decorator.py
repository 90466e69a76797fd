"""Checks the arguments of the decorators Client.synchronized() and aio.Client.synchronized()."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def require_function(function: Callable[..., Any], *, coroutine: bool) -> None:
    """Raises TypeError if a call of function returns before its body has ended: the lock would be released too early.

    coroutine: whether function must be a coroutine function.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name} is a generator, whose body runs after the call: use a with block in it")
    if inspect.iscoroutinefunction(function) and not coroutine:
        raise TypeError(
            f"{name} is a coroutine function: decorate it with the synchronized() of locksidecar.aio.Client"
        )
    if coroutine and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} is no coroutine function: decorate it with the synchronized() of locksidecar.Client")

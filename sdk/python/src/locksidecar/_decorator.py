"""The decorators: synchronized() of the clients and of their semaphores."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


def is_write(mode: str) -> bool:
    """Whether mode is "write"; raises ValueError if it is not "read" either."""
    if mode not in ("read", "write"):
        raise ValueError(f'the mode must be "read" or "write", not {mode!r}')
    return mode == "write"


def within(make: Callable[P, AbstractContextManager[object]]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a decorator: each call of the function is a block of what make returns for its arguments."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _require_function(function, coroutine=False)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with make(*args, **kwargs):
                return function(*args, **kwargs)

        return call

    return decorate


def within_async(
    make: Callable[P, AbstractAsyncContextManager[object]],
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """As within(), for coroutine functions."""

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        _require_function(function, coroutine=True)

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            async with make(*args, **kwargs):
                return await function(*args, **kwargs)

        return call

    return decorate


def _require_function(function: Callable[..., Any], *, coroutine: bool) -> None:
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

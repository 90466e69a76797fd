"""The web applications of the storm. Each request runs a few operations.

The client is made when the module is imported. With gunicorn --preload and uWSGI that is before the fork, and before
gevent patches the standard library.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import locker
import locksidecar
from locker import AsyncLocker, Interrupt, Interrupter, Locker
from locksidecar import aio

OPERATIONS = 5

if os.environ["STORM_KIND"] == "gunicorn-gevent":
    from gevent import monkey

    # This kind tests a patching after the import.
    assert not monkey.is_module_patched("threading")

_locker = Locker(locksidecar.Client())
_locker.client.ping()  # so that the forked workers inherit a connection and an owner


class GeventInterrupter:
    """Raises Interrupt in the greenlet that armed it."""

    armed = False

    def arm(self, seconds: float) -> None:
        import gevent

        self._timeout = gevent.Timeout.start_new(seconds, Interrupt())

    def disarm(self) -> None:
        self._timeout.close()


_alarm: Interrupter | None = None


def _interrupter() -> Interrupter | None:
    global _alarm
    if os.environ["STORM_KIND"] == "gunicorn-gevent":
        return GeventInterrupter()
    # Not under uWSGI: it may run signal handlers in any thread, and the main thread of its workers is not Python's.
    if os.environ["STORM_KIND"] == "gunicorn-sync" and locker.in_main_thread():
        if _alarm is None:
            _alarm = locker.AlarmInterrupter()
        return _alarm
    return None


def wsgi(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    rng = random.Random()
    interrupter = _interrupter()
    for _ in range(OPERATIONS):
        _locker.operate(rng, interrupter)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done\n"]


_client: aio.Client | None = None


async def asgi(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    global _client
    if scope["type"] != "http":
        return
    if _client is None:
        _client = aio.Client()
    async_locker = AsyncLocker(_client)
    await asyncio.gather(*[async_locker.operate(random.Random()) for _ in range(OPERATIONS)])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done\n"})

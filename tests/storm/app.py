"""The web applications of the storm. Each request is a few operations.

The client is made when the module is imported: before the fork, and before gevent patches anything, where the server
does so (gunicorn --preload, uwsgi).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import locker
import locksidecar
from locker import AsyncLocker, Cut, Cutter, Locker
from locksidecar import aio

OPERATIONS = 5

if os.environ["STORM_KIND"] == "gunicorn-gevent":
    from gevent import monkey

    # What this kind is about: the patching comes after the import.
    assert not monkey.is_module_patched("threading")

_locker = Locker(locksidecar.Client())
_locker.client.ping()  # there is a connection, and an owner, to be inherited


class GeventTimeout:
    """Raises Cut in the greenlet that armed it."""

    armed = False

    def arm(self, seconds: float) -> None:
        import gevent

        self._timeout = gevent.Timeout.start_new(seconds, Cut())

    def disarm(self) -> None:
        self._timeout.close()


_alarm: Cutter | None = None


def _cutter() -> Cutter | None:
    global _alarm
    if os.environ["STORM_KIND"] == "gunicorn-gevent":
        return GeventTimeout()
    # uwsgi runs handlers of signals where it likes, and its workers' main thread is not Python's.
    if os.environ["STORM_KIND"] == "gunicorn-sync" and locker.in_main_thread():
        if _alarm is None:
            _alarm = locker.Alarm()
        return _alarm
    return None


def wsgi(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    rng = random.Random()
    cutter = _cutter()
    for _ in range(OPERATIONS):
        _locker.operate(rng, cutter)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done\n"]


_client: aio.Client | None = None


async def asgi(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    global _client
    if scope["type"] != "http":
        return
    if _client is None:
        _client = aio.Client()
    both = AsyncLocker(_client)
    await asyncio.gather(*[both.operate(random.Random()) for _ in range(OPERATIONS)])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done\n"})

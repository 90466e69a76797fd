"""A signal handler or a __del__ that uses the client, at every point at which the interpreter runs handlers.

As in test_interrupts.py, a profile function stands for the handler. Each test is one process. SIGALRM ends it if it
hangs.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from fake import FakeSidecar

import locksidecar
from locksidecar import Client, Held, Unconfirmed, _core

OURS = os.path.dirname(_core.__file__)
HANG = 60  # seconds; only a process that hangs runs that long


class Handler:
    """Calls a function at one point, once."""

    def __init__(self, point: int, function: Callable[[], object]) -> None:
        self.left = point
        self.function = function

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and os.path.dirname(frame.f_code.co_filename) == OURS:
            self.left -= 1
            if self.left == 0:
                self.function()


def check(client: Client, other: Held) -> None:
    other.check()


def release(client: Client, other: Held) -> None:
    other.release()


def release_confirmed(client: Client, other: Held) -> None:
    with contextlib.suppress(Unconfirmed):  # inside of a change of the session, a frame cannot wait
        other.release(confirm=True)


def acquire(client: Client, other: Held) -> None:
    with client.lock("third"):
        pass


class Owner:
    """Garbage that releases a lock when it is collected."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.cycle = self

    def __del__(self) -> None:
        self.held.release()


def collect(client: Client, other: Held) -> None:
    Owner(other)
    gc.collect()


def acquire_at_each_point(path: str, function: Callable[[Client, Held], None]) -> None:
    with locksidecar.connect(path) as client:
        for point in itertools.count(1):
            with contextlib.ExitStack() as stack:
                # It is free again: an earlier handler has released it.
                lock = client.lock("other", timeout=10)
                lock.acquire()
                other = lock.held
                handler = Handler(point, lambda other=other: function(client, other))  # type: ignore[misc]
                stack.callback(sys.setprofile, None)
                sys.setprofile(handler)
                with client.lock("n") as held:
                    held.check()
                sys.setprofile(None)
                if not other.released:
                    other.release()
            if handler.left > 0:
                return


@pytest.mark.parametrize("function", [check, release, release_confirmed, acquire, collect])
def test_handler_that_uses_the_client(sidecar: FakeSidecar, function: Callable[[Client, Held], None]) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(HANG)
            acquire_at_each_point(sidecar.path, function)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

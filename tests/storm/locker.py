"""What every process of the storm does: it locks, enters a marked section, and writes down what happened.

The section is a file that is locked with flock(). Another process, thread or task that is inside finds it locked; a
process that dies unlocks it. Each event is one line of the log, which all processes append to:

    op                 an operation has ended: a block, or an acquire that was cut short
    held NAME TOKEN    a hold, by its first entry
    cut                a timeout or a signal ended an operation
    window             a cut left the lock held, at one of the two moments that sdk/python/README.md names
    timeout            another owner held the lock for too long
    inside NAME        a violation: two were in one section
    error TEXT         an exception that no user should see
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Protocol

import locksidecar
from locksidecar import aio

DIRECTORY = Path(os.environ["STORM_DIRECTORY"])
NAMES = 6
WAIT = 10.0  # for a lock, seconds
CUT_AFTER = 0.0015  # a cut comes within so many seconds
AGAIN = 0.002  # between the signals of one cut
KINDS = ("block", "reenter", "acquire", "cut", "cut")


class Cut(BaseException):
    """What a signal handler raises. No handler of errors catches it, as with asyncio's and gevent's cancellation."""


class Cutter(Protocol):
    """Ends an operation after some time, in the thread that armed it."""

    armed: bool  # cleared before disarm() is called, so that nothing is raised on the way to it

    def arm(self, seconds: float) -> None: ...

    def disarm(self) -> None: ...


class Alarm:
    """A handler that raises Cut in the main thread, again and again: what completes an interrupted call is interrupted
    too, and what a finalizer swallows is raised again."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._raise)

    def arm(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-5), AGAIN)

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, _: int, frame: FrameType | None) -> None:
        if self.armed:
            raise Cut


def write(line: str) -> None:
    """One line, which appears whole."""
    fd = os.open(DIRECTORY / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


_EXITING = 0x4  # PF_EXITING: a process that was killed may lose its connection before it loses its other files


def _lives(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return not int(stat[6]) & _EXITING


def _holder(fd: int) -> str:
    """The process that has locked the file with flock(); "" if there is none."""
    inode = str(os.fstat(fd).st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
            return words[4]
    return ""


@contextlib.contextmanager
def section(name: str) -> Iterator[None]:
    fd = os.open(DIRECTORY / f"section-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if (pid := _holder(fd)) and _lives(pid):
                    write(f"inside {name}")
                    break
        yield
    finally:
        os.close(fd)


def error(e: BaseException) -> None:
    write(f"error {type(e).__name__}: {e}".replace("\n", " "))


class Locker:
    """Operations of one process, with the client for threads."""

    def __init__(self, client: locksidecar.Client, nap: Callable[[float], object] = time.sleep) -> None:
        self.client = client
        self.nap = nap

    def operate(self, rng: random.Random, cutter: Cutter | None) -> None:
        name = f"n{rng.randrange(NAMES)}"
        kind = rng.choice(KINDS)
        if kind == "cut" and cutter is None:
            kind = "block"
        try:
            match kind:
                case "block":
                    self._block(self.client.lock(name, timeout=WAIT), name, rng)
                case "reenter":
                    lock = self.client.rlock(name, timeout=WAIT)
                    with lock as outer, section(name):
                        write(f"held {name} {outer.token}")
                        with lock as inner:
                            assert inner.token == outer.token
                        outer.check()
                case "acquire":
                    tried = self.client.lock(name)
                    # Right after the daemon was started, Redis may not be reached in so short a time.
                    with contextlib.suppress(locksidecar.Unavailable):
                        if tried.acquire(timeout=rng.random() * 0.02):
                            with section(name):
                                write(f"held {name} {tried.token}")
                            tried.release()
                case "cut":
                    assert cutter is not None
                    self._cut(name, rng, cutter)
        except locksidecar.LockTimeout:
            write("timeout")
        except Exception as e:
            error(e)
        write("op")

    def _block(self, lock: locksidecar.Lock, name: str, rng: random.Random) -> None:
        with lock as held, section(name):
            write(f"held {name} {held.token}")
            self.nap(rng.random() * 0.001)
            held.check()

    def _cut(self, name: str, rng: random.Random, cutter: Cutter) -> None:
        """Cut short, and repeated at once by the same owner."""
        kind = rng.choice((self.client.lock, self.client.rlock))
        lock = kind(name, timeout=WAIT, lease=rng.choice((None, 5.0)))
        try:
            try:
                cutter.arm(rng.random() * CUT_AFTER)
                while True:
                    self._block(lock, name, rng)
            finally:
                cutter.armed = False
                cutter.disarm()
        except Cut:
            write("cut")
        if lock.locked():
            write("window")
            lock.release()
        self._block(lock, name, rng)


class AsyncLocker:
    """The same, with the client for asyncio."""

    def __init__(self, client: aio.Client) -> None:
        self.client = client

    async def operate(self, rng: random.Random) -> None:
        name = f"n{rng.randrange(NAMES)}"
        try:
            match rng.choice(KINDS):
                case "block":
                    await self._block(self.client.lock(name, timeout=WAIT), name)
                case "reenter":
                    lock = self.client.rlock(name, timeout=WAIT)
                    async with lock as outer, lock as inner:
                        with section(name):
                            write(f"held {name} {outer.token}")
                            assert inner.token == outer.token
                case "acquire":
                    tried = self.client.lock(name)
                    with contextlib.suppress(locksidecar.Unavailable):
                        if await tried.acquire(timeout=rng.random() * 0.02):
                            with section(name):
                                write(f"held {name} {tried.token}")
                            tried.release()
                case "cut":
                    await self._cut(name, rng)
        except locksidecar.LockTimeout:
            write("timeout")
        except Exception as e:
            error(e)
        write("op")

    async def _cut(self, name: str, rng: random.Random) -> None:
        """Cut short, and repeated at once by the same owner."""
        kind = rng.choice((self.client.lock, self.client.rlock))
        lock = kind(name, timeout=WAIT, lease=rng.choice((None, 5.0)))
        try:
            async with asyncio.timeout(rng.random() * CUT_AFTER):
                while True:
                    await self._block(lock, name)
        except TimeoutError:
            write("cut")
        await self._block(lock, name)

    async def _block(self, lock: aio.Lock, name: str) -> None:
        async with lock as held:
            with section(name):
                write(f"held {name} {held.token}")
                await asyncio.sleep(0)
            held.check()


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

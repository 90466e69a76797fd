"""The operations of every process of the storm: it acquires a lock, enters a section, and logs events.

A section is a file that is locked with flock(). If two holders enter one section, the second one finds the file locked;
the kernel unlocks it when a process dies. All processes append to one log. Each event is one line:

    op                 an operation has ended: a block, or an acquire, possibly interrupted
    held NAME TOKEN    a hold, at its first entry
    interrupt          a timeout or a signal ended an operation
    window             an interrupt left the lock held, at one of the two moments that sdk/python/README.md names
    timeout            another owner held the lock for too long
    overlap NAME       a violation: two holders were in one section
    error TEXT         an unexpected exception
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
INTERRUPT_AFTER = 0.0015  # at most, seconds
REPEAT_AFTER = 0.002  # between the signals of one interrupt, seconds
KINDS = ("block", "reenter", "acquire", "interrupt", "interrupt")


class Interrupt(BaseException):
    """Raised by a signal handler. A BaseException, like the cancellations of asyncio and gevent."""


class Interrupter(Protocol):
    """Raises Interrupt in the thread that armed it, after some time."""

    armed: bool  # cleared before disarm() is called, so that nothing is raised before disarm() has ended

    def arm(self, seconds: float) -> None: ...

    def disarm(self) -> None: ...


class AlarmInterrupter:
    """A signal handler that raises Interrupt in the main thread repeatedly.

    So it also interrupts the completion of an interrupted call, and raises again if a finalizer has swallowed it.
    """

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGALRM, self._raise)

    def arm(self, seconds: float) -> None:
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-5), REPEAT_AFTER)

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, _: int, frame: FrameType | None) -> None:
        if self.armed:
            raise Interrupt


def write(line: str) -> None:
    """Appends one line to the log, with one write()."""
    fd = os.open(DIRECTORY / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


_EXITING = 0x4  # PF_EXITING: the kernel may close the connection of a killed process before its other files


def _is_alive(pid: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return not int(stat[6]) & _EXITING


def _holder(fd: int) -> str:
    """The id of the process that has locked the file with flock(); "" if there is none."""
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
                if (pid := _holder(fd)) and _is_alive(pid):
                    write(f"overlap {name}")
                    break
        yield
    finally:
        os.close(fd)


def log_error(e: BaseException) -> None:
    write(f"error {type(e).__name__}: {e}".replace("\n", " "))


class Locker:
    """Operations of one process, with the client for threads."""

    def __init__(self, client: locksidecar.Client, sleep_for: Callable[[float], object] = time.sleep) -> None:
        self.client = client
        self.sleep_for = sleep_for

    def operate(self, rng: random.Random, interrupter: Interrupter | None) -> None:
        name = f"n{rng.randrange(NAMES)}"
        kind = rng.choice(KINDS)
        if kind == "interrupt" and interrupter is None:
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
                    # Just after its start, the daemon may not be connected to Redis yet.
                    with contextlib.suppress(locksidecar.Unavailable):
                        if tried.acquire(timeout=rng.random() * 0.02):
                            with section(name):
                                write(f"held {name} {tried.token}")
                            tried.release()
                case "interrupt":
                    assert interrupter is not None
                    self._interrupted(name, rng, interrupter)
        except locksidecar.LockTimeout:
            write("timeout")
        except Exception as e:
            log_error(e)
        write("op")

    def _block(self, lock: locksidecar.Lock, name: str, rng: random.Random) -> None:
        with lock as held, section(name):
            write(f"held {name} {held.token}")
            self.sleep_for(rng.random() * 0.001)
            held.check()

    def _interrupted(self, name: str, rng: random.Random, interrupter: Interrupter) -> None:
        """An interrupted operation, which the same owner repeats at once."""
        kind = rng.choice((self.client.lock, self.client.rlock))
        lock = kind(name, timeout=WAIT, lease=rng.choice((None, 5.0)))
        try:
            try:
                interrupter.arm(rng.random() * INTERRUPT_AFTER)
                while True:
                    self._block(lock, name, rng)
            finally:
                interrupter.armed = False
                interrupter.disarm()
        except Interrupt:
            write("interrupt")
        if lock.locked():
            write("window")
            lock.release()
        self._block(lock, name, rng)


class AsyncLocker:
    """The same operations, with the client for asyncio."""

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
                case "interrupt":
                    await self._interrupted(name, rng)
        except locksidecar.LockTimeout:
            write("timeout")
        except Exception as e:
            log_error(e)
        write("op")

    async def _interrupted(self, name: str, rng: random.Random) -> None:
        """An interrupted operation, which the same owner repeats at once."""
        kind = rng.choice((self.client.lock, self.client.rlock))
        lock = kind(name, timeout=WAIT, lease=rng.choice((None, 5.0)))
        try:
            async with asyncio.timeout(rng.random() * INTERRUPT_AFTER):
                while True:
                    await self._block(lock, name)
        except TimeoutError:
            write("interrupt")
        await self._block(lock, name)

    async def _block(self, lock: aio.Lock, name: str) -> None:
        async with lock as held:
            with section(name):
                write(f"held {name} {held.token}")
                await asyncio.sleep(0)
            held.check()


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

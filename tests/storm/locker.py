"""The operations of every process of the storm: it acquires a lock, enters a section, and logs events.

A section is a file that is locked with flock(). If two holders enter one section, the second one finds the file locked;
the kernel unlocks it when a process dies. All processes append to one log. Each event is one line:

    process PID        a process has begun its first operation
    op                 an operation has ended: a block, or an acquire, possibly interrupted
    held NAME TOKEN    a hold, at its first entry
    interrupt          a timeout or a signal ended an operation
    handler            a signal handler, or a __del__, has used the client
    window             an interrupt left the lock held, at one of the two moments that sdk/python/README.md names
    timeout            another owner held the lock for too long
    overlap NAME …     a violation: two holders were in one section
    error TEXT         an unexpected exception
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import gc
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from io import FileIO
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
KINDS = ("block", "reenter", "acquire", "interrupt", "interrupt", "handler", "handler")
HANG = 60.0  # seconds; an operation that takes that long hangs
HANDLERS = 6  # at most, for one operation


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
    With call_after() it calls a function instead, once.
    """

    def __init__(self) -> None:
        self.armed = False
        self._function: Callable[[], object] | None = None
        signal.signal(signal.SIGALRM, self._on_alarm)

    def arm(self, seconds: float) -> None:
        self._function = None
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-5), REPEAT_AFTER)

    def call_after(self, seconds: float, function: Callable[[], object]) -> None:
        self._function = function
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-5))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        if self.armed:
            if self._function is None:
                raise Interrupt
            self._function()


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


def section(name: str) -> FileIO:
    """Enters a section; the end of the block leaves it.

    The methods that a with statement calls are in C. So no signal handler can raise between their begin and the close.
    """
    file = FileIO(DIRECTORY / f"section-{name}", "a")
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if (pid := _holder(file.fileno())) and _is_alive(pid):
                    write(f"overlap {name} of {os.getpid()} and {pid}")
                    break
    except BaseException:
        file.close()
        raise
    return file


_announced = 0  # the process that has written its id


def announce() -> None:
    global _announced
    if _announced != os.getpid():
        _announced = os.getpid()
        write(f"process {_announced}")


def log_error(e: BaseException) -> None:
    write(f"error {type(e).__name__}: {e}".replace("\n", " "))


class HangDetector:
    """Ends the process, after it has written where its threads are, if an operation does not end.

    It also writes that when the storm asks for it, because the process has not released a lock.
    """

    def __init__(self) -> None:
        self._file = (DIRECTORY / f"hang-{os.getpid()}").open("w")
        faulthandler.register(signal.SIGUSR2, file=self._file)

    def __enter__(self) -> None:
        faulthandler.dump_traceback_later(HANG, exit=True, file=self._file)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


_detectors: dict[int, HangDetector] = {}  # by process


def hang_detector() -> HangDetector:
    if os.getpid() not in _detectors:
        _detectors[os.getpid()] = HangDetector()
    return _detectors[os.getpid()]


class Garbage:
    """A cycle that releases a lock when the garbage collector finds it, at any point of the program."""

    def __init__(self, held: locksidecar.Held) -> None:
        self.held = held
        self.cycle = self

    def __del__(self) -> None:
        try:
            self.held.release()
        except (locksidecar.NotHeld, locksidecar.LockLost):
            pass
        except BaseException as e:
            log_error(e)
        write("handler")


_extra_numbers = itertools.count(1)


class HandlerUse:
    """What signal handlers do with the client while the main thread is in one operation.

    Each handler may be interrupted by another one.
    """

    def __init__(self, client: locksidecar.Client, alarm: AlarmInterrupter, rng: random.Random, closes: bool) -> None:
        self.client = client
        self.closes = closes
        self._alarm = alarm
        self._rng = rng
        self._left = rng.randrange(1, HANDLERS)
        self._depth = 0
        self._extra = [self._acquire_extra() for _ in range(3)]
        for _ in range(2):
            Garbage(self._acquire_extra())
        self._threshold = gc.get_threshold()

    def _acquire_extra(self) -> locksidecar.Held:
        """A lock that no other process wants."""
        lock = self.client.lock(f"extra-{os.getpid()}-{next(_extra_numbers)}", timeout=WAIT)
        lock.acquire()
        return lock.held

    def begin(self) -> None:
        # So that it collects inside of the client. A server has many old objects: those are left alone.
        gc.set_threshold(40, 1000, 1000)
        self._alarm.call_after(self._rng.random() * INTERRUPT_AFTER, self)

    def end(self) -> None:
        """Releases what no handler has released."""
        self._alarm.armed = False
        self._alarm.disarm()
        gc.set_threshold(*self._threshold)
        for held in self._extra:
            with contextlib.suppress(locksidecar.NotHeld, locksidecar.LockLost):
                held.release()
        gc.collect(1)

    def __call__(self) -> None:
        self._left -= 1
        self._depth += 1
        if self._depth < 3 and self._left > 0 and self._rng.random() < 0.3:
            self._alarm.call_after(self._rng.random() * INTERRUPT_AFTER, self)
        try:
            self._use()
        except (locksidecar.NotHeld, locksidecar.LockLost, locksidecar.Deadlock, locksidecar.LockTimeout):
            pass  # another handler has released it; the interrupted frame has it; another process has it
        except (locksidecar.Unconfirmed, locksidecar.ClientClosed, locksidecar.Unavailable):
            pass  # inside of a change of the session; closed; the daemon is restarted
        except BaseException as e:
            log_error(e)
        write("handler")
        self._depth -= 1
        if self._left > 0 and self._depth == 0:
            self._alarm.call_after(self._rng.random() * INTERRUPT_AFTER, self)

    def _use(self) -> None:
        rng = self._rng
        held = rng.choice(self._extra)
        match rng.randrange(8 if self.closes else 7):
            case 0:
                held.check()
            case 1:
                assert held.remaining >= 0
                assert held.lost is None or held.lost
            case 2:
                held.release()
            case 3:
                held.release(confirm=True, timeout=1)
            case 4:
                gc.collect(1)
            case 5 | 6:
                name = f"closed-{os.getpid()}" if self.closes else f"n{rng.randrange(NAMES)}"
                lock = self.client.lock(name)
                if lock.acquire(timeout=rng.random() * 0.02):
                    with section(name):
                        write(f"held {name} {lock.token}")
                    lock.release()
            case 7:
                self.client.close()


class Locker:
    """Operations of one process, with the client for threads."""

    def __init__(self, client: locksidecar.Client, sleep_for: Callable[[float], object] = time.sleep) -> None:
        self.client = client
        self.sleep_for = sleep_for

    def operate(self, rng: random.Random, interrupter: Interrupter | None) -> None:
        name = f"n{rng.randrange(NAMES)}"
        kind = rng.choice(KINDS)
        if (kind == "interrupt" and interrupter is None) or (
            kind == "handler" and not isinstance(interrupter, AlarmInterrupter)
        ):
            kind = "block"
        announce()
        try:
            match kind:
                case "handler":
                    assert isinstance(interrupter, AlarmInterrupter)
                    with hang_detector():
                        self._handled(name, rng, interrupter)
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

    def _handled(self, name: str, rng: random.Random, alarm: AlarmInterrupter) -> None:
        """Blocks that are interrupted by handlers which use the client, and return."""
        closes = rng.random() < 0.2
        client = self.client
        if closes:  # a lock that is lost then, so no other process may want it
            client, name = locksidecar.Client(), f"closed-{os.getpid()}"
        use = HandlerUse(client, alarm, rng, closes)
        lock = client.lock(name, timeout=WAIT)
        try:
            use.begin()
            for _ in range(rng.randrange(1, 5)):
                self._block(lock, name, rng)
        except locksidecar.LocksidecarError as e:
            if not (closes and isinstance(e, locksidecar.ClientClosed | locksidecar.LockLost)):
                raise
        finally:
            use.end()
            if closes:
                client.close()
        if not closes:
            assert not lock.locked()

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
        announce()
        try:
            match rng.choice(KINDS):
                case "block" | "handler":
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

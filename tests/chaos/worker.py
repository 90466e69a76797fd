"""A client process of the chaos run, in Python. It does the same as worker.go, with threads and with tasks."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import locksidecar
from locksidecar import aio

Fields = dict[str, Any]

config: Fields = json.loads(os.environ["CHAOS_WORKER"])
stopping = threading.Event()  # set when no new section may begin
ops = itertools.count(1)
owners = itertools.count(1)

_log = os.open(os.path.join(config["logs"], config["client"] + ".jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def record(kind: str, at: int, op: int, **fields: Any) -> None:
    event = {"ev": kind, "t": at, "c": config["client"], "op": op, **{k: v for k, v in fields.items() if v}}
    os.write(_log, json.dumps(event).encode() + b"\n")


def to_ns(deadline: float) -> int:
    """Returns the deadline in nanoseconds, one microsecond early: a float has no exact nanoseconds."""
    return int(deadline * 1e9) - 1000


ERROR_KINDS: dict[type[BaseException], str] = {
    locksidecar.LockTimeout: "timeout",
    locksidecar.LockLost: "lost",
    locksidecar.NotHeld: "not_held",
    locksidecar.Deadlock: "deadlock",
    locksidecar.Unavailable: "unavailable",
    locksidecar.LimitExceeded: "limit",
    locksidecar.ClientClosed: "closed",
    locksidecar.Denied: "denied",
    asyncio.CancelledError: "canceled",
}


def error_fields(e: BaseException | None) -> Fields:
    if e is None:
        return {}
    kind = next((kind for cls, kind in ERROR_KINDS.items() if isinstance(e, cls)), "other")
    return {
        "err": kind,
        "reason": getattr(e, "reason", ""),
        "maybe": getattr(e, "may_have_happened", False),
        "msg": "" if kind in ("timeout", "canceled", "lost") else f"{type(e).__name__}: {e}",
    }


class Section:
    """One granted acquire, and the records of its events."""

    def __init__(self, op: int, held: locksidecar.Held | aio.Held) -> None:
        self.op = op
        self.held = held
        self.lost = False
        record("grant", now(), op, token=held.token, until=to_ns(held.deadline))

    def check(self) -> bool:
        before = now()
        try:
            self.held.check()
        except locksidecar.LockLost as e:
            self.record_loss(before, e)
            return False
        deadline = to_ns(self.held.deadline)
        record("check", now(), self.op, b=before, until=deadline)
        return True

    def record_loss(self, before: int, e: locksidecar.LockLost) -> None:
        if not self.lost:
            self.lost = True
            record("lost", now(), self.op, b=before, reason=e.reason)

    def begin_release(self) -> int:
        """Records the release before it is done: after this record the holder does not believe in the lock."""
        before = now()
        record("release", before, self.op)
        return before

    def end_release(self, before: int, e: BaseException | None) -> None:
        record("released", now(), self.op, b=before, **error_fields(e))

    def release(self) -> None:
        before = self.begin_release()
        error: BaseException | None = None
        try:
            self.held.release()
        except locksidecar.LocksidecarError as e:
            error = e
        self.end_release(before, error)

    def begin_write(self) -> tuple[int, Fields]:
        before = now()
        value = f"{config['client']}/{self.op}/{before}"
        return before, {"lock": self.held.name, "token": self.held.token, "value": value}

    def end_write(self, before: int, request: Fields, done: Fields) -> None:
        record("write", now(), self.op, b=before, token=request["token"], value=request["value"], **done)


class Choices:
    def __init__(self, n: int) -> None:
        self.random = random.Random(config["seed"] * 1000 + n)

    def up_to(self, seconds: float) -> float:
        return self.random.random() * seconds

    def hot_lock(self) -> str:
        return f"hot:{self.random.randrange(config['hot'])}"

    def cool_lock(self) -> str:
        return f"cool:{self.random.randrange(config['cool'])}"

    def any_lock(self) -> str:
        return self.cool_lock() if self.random.randrange(4) == 0 else self.hot_lock()

    def think_time(self) -> float:
        return self.up_to(2 * config["think_ms"] / 1000)

    def wait_ms(self) -> int:
        return 1 + int(self.up_to(500))

    def lease_ms(self) -> int:
        return 300 + int(self.up_to(1200))

    def max_hold_ms(self) -> int:
        return 100 + int(self.up_to(500))

    def permits_request(self) -> Fields:
        """What is recorded of a request for permits of the semaphore."""
        return {"permits": 1 + self.random.randrange(MOST_PERMITS), "of": config["of"]}

    def permits_time(self) -> float:
        return self.up_to(min(1.5 * LEASE, 3)) if self.random.randrange(30) == 0 else self.up_to(0.04)


LEASE = config["lease_ms"] / 1000
MOST_PERMITS = 3


def record_invoke(lock: str, **fields: Any) -> int:
    op = next(ops)
    record("invoke", now(), op, lock=lock, **fields)
    return op


def usable(actions: tuple[tuple[int, str], ...]) -> tuple[list[int], list[str]]:
    """Returns the actions that there are locks or permits for: their weights and names."""
    usable = [(w, name) for w, name in actions if config["of" if name == "permits" else "hot"]]
    return [w for w, _ in usable], [name for _, name in usable]


# --- Threads ---


class Actor(Choices):
    """A thread that runs one random action after the other."""

    ACTIONS = (
        (50, "short"),
        (3, "long"),
        (10, "reenter"),
        (15, "once"),
        (10, "limited"),
        (4, "fixed_lease"),
        (3, "max_hold"),
        (10, "permits"),
    )

    def __init__(self, n: int, client: locksidecar.Client) -> None:
        super().__init__(n)
        self.client = client
        self.register: socket.socket | None = None

    def run(self) -> None:
        weights, names = usable(self.ACTIONS)
        while not stopping.is_set():
            stopping.wait(self.think_time())
            action: Callable[[], None] = getattr(self, self.random.choices(names, weights)[0])
            action()

    def acquire(self, lock: locksidecar.Lock, timeout: float | None = None, **request: Any) -> Section | None:
        def acquire() -> locksidecar.Held:
            if not lock.acquire(timeout=timeout):
                raise locksidecar.LockTimeout("in time")
            return lock.held

        return self.record(acquire, lock.name, **request)

    def record(self, acquire: Callable[[], locksidecar.Held], name: str, **request: Any) -> Section | None:
        op = record_invoke(name, **request)
        try:
            held = acquire()
        except locksidecar.LocksidecarError as e:
            record("error", now(), op, **error_fields(e))
            if isinstance(e, locksidecar.Unavailable):
                stopping.wait(0.05)
            return None
        return Section(op, held)

    def write(self, s: Section) -> None:
        if self.register is None:
            self.register = socket.socket(socket.AF_UNIX)
            self.register.connect(config["register"])
        before, request = s.begin_write()
        self.register.sendall(json.dumps(request).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += (
                self.register.recv(4096) or b"\n"
            )  # b"": the register was closed at the end of the run; the empty line is an invalid answer
        s.end_write(before, request, json.loads(answer))

    def use_briefly(self, s: Section | None) -> None:
        if s is not None:
            self.write(s)
            time.sleep(self.up_to(0.005))
            s.check()
            s.release()

    def use_for(self, s: Section | None, seconds: float) -> None:
        if s is None:
            return
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stopping.is_set():
            self.write(s)
            stopping.wait(0.05 + self.up_to(0.2))
            if not s.check():
                break
        if s.lost and self.random.randrange(2) == 0:
            self.write(s)  # a write after the loss, which the token must fence off
        s.release()

    def short(self) -> None:
        self.use_briefly(self.acquire(self.client.lock(self.any_lock())))

    def long(self) -> None:
        self.use_for(self.acquire(self.client.lock(self.cool_lock())), self.up_to(1.5 * LEASE))

    def reenter(self) -> None:
        slow = self.random.randrange(8) == 0  # so that a fault may happen between the two entries
        lock = self.client.rlock(self.cool_lock() if slow else self.any_lock())
        owner = next(owners)
        outer = self.acquire(lock, owner=owner)
        if outer is None:
            return
        if slow:
            stopping.wait(self.up_to(LEASE / 2))
        self.use_briefly(self.acquire(lock, owner=owner))
        outer.check()
        outer.release()

    def once(self) -> None:
        self.use_briefly(self.acquire(self.client.lock(self.any_lock()), timeout=0, wait=1))

    def limited(self) -> None:
        wait = self.wait_ms()
        self.use_briefly(self.acquire(self.client.lock(self.any_lock()), timeout=wait / 1000, wait=wait))

    def fixed_lease(self) -> None:
        lease = self.lease_ms()
        s = self.acquire(self.client.lock(self.cool_lock(), lease=lease / 1000), lease=lease)
        self.use_for(s, self.up_to(1.5 * lease / 1000))

    def max_hold(self) -> None:
        limit = self.max_hold_ms()
        s = self.acquire(self.client.lock(self.cool_lock(), max_hold=limit / 1000), maxhold=limit)
        self.use_for(s, self.up_to(1.5 * limit / 1000))

    def permits(self) -> None:
        request = self.permits_request()
        semaphore = self.client.semaphore("permits", permits=request["of"])
        limit: float | None = None
        if self.random.randrange(8) == 0:
            request["wait"] = self.wait_ms()
            limit = request["wait"] / 1000
        s = self.record(lambda: semaphore.acquire(request["permits"], timeout=limit), semaphore.name, **request)
        if s is None:
            return
        end = time.monotonic() + self.permits_time()
        while True:
            left = end - time.monotonic()
            stopping.wait(max(0.0, min(left, 0.1)))
            if not s.check() or left <= 0 or stopping.is_set():
                break
        s.release()


# --- Tasks ---


class Task(Choices):
    """An asyncio task that runs one random action after the other. Its bodies are cancelled when a lock is lost."""

    ACTIONS = ((60, "short"), (5, "long"), (20, "limited"), (5, "max_hold"), (10, "cancelled"), (10, "permits"))

    def __init__(self, n: int, client: aio.Client) -> None:
        super().__init__(n)
        self.client = client
        self.register: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        weights, names = usable(self.ACTIONS)
        while not stopping.is_set():
            await asyncio.sleep(self.think_time())
            action: Callable[[], Coroutine[Any, Any, None]] = getattr(self, self.random.choices(names, weights)[0])
            await action()

    async def write(self, s: Section) -> None:
        if self.register is None:
            self.register = await asyncio.open_unix_connection(config["register"])
        reader, writer = self.register
        before, request = s.begin_write()
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            done = json.loads(await reader.readline())
        except BaseException:
            writer.close()  # otherwise the next write would get the answer to this one
            self.register = None
            raise
        s.end_write(before, request, done)

    async def section(self, lock: aio.Lock, seconds: float, **request: Any) -> None:
        await self.record(lock, lock.name, lambda s: self.use_for(s, seconds), **request)

    async def record(
        self,
        block: AbstractAsyncContextManager[aio.Held],
        name: str,
        use: Callable[[Section], Coroutine[Any, Any, None]],
        **request: Any,
    ) -> None:
        op = record_invoke(name, **request)
        s: Section | None = None
        before = 0
        error: BaseException | None = None
        try:
            async with block as held:
                s = Section(op, held)
                try:
                    await use(s)
                finally:  # the body may have been cancelled
                    before = s.begin_release()
        except (locksidecar.LocksidecarError, asyncio.CancelledError) as e:
            error = e
        if s is not None:
            s.end_release(before, error if isinstance(error, locksidecar.LocksidecarError) else None)
            return
        record("error", now(), op, **error_fields(error))
        if isinstance(error, locksidecar.Unavailable):
            await asyncio.sleep(0.05)

    async def use_for(self, s: Section, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            await self.write(s)
            left = end - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, 0.05 + self.up_to(0.2))))
            if not s.check() or left <= 0 or stopping.is_set():
                return

    async def permits(self) -> None:
        request, seconds = self.permits_request(), self.permits_time()
        semaphore = self.client.semaphore("permits", permits=request["of"])

        async def use(s: Section) -> None:
            end = time.monotonic() + seconds
            while True:
                left = end - time.monotonic()
                await asyncio.sleep(max(0.0, min(left, 0.1)))
                if not s.check() or left <= 0 or stopping.is_set():
                    return

        held = asyncio.create_task(self.record(semaphore.acquire(request["permits"]), semaphore.name, use, **request))
        if self.random.randrange(8) == 0:
            await asyncio.sleep(self.up_to(0.1))
            held.cancel()
        await asyncio.wait([held])
        held.result()

    async def short(self) -> None:
        await self.section(self.client.lock(self.any_lock()), self.up_to(0.005))

    async def long(self) -> None:
        await self.section(self.client.lock(self.cool_lock()), self.up_to(1.5 * LEASE))

    async def limited(self) -> None:
        wait = self.wait_ms()
        await self.section(self.client.lock(self.any_lock(), timeout=wait / 1000), self.up_to(0.005), wait=wait)

    async def max_hold(self) -> None:
        limit = self.max_hold_ms()
        lock = self.client.lock(self.cool_lock(), max_hold=limit / 1000)
        await self.section(lock, self.up_to(1.5 * limit / 1000), maxhold=limit)

    async def cancelled(self) -> None:
        section = asyncio.create_task(self.section(self.client.lock(self.any_lock()), self.up_to(0.005)))
        await asyncio.sleep(self.up_to(0.1))
        section.cancel()
        await asyncio.wait([section])
        section.result()


async def run(actors: int) -> None:
    async with aio.Client(config["socket"]) as client:
        await asyncio.gather(*(Task(1000 + n, client).run() for n in range(actors)))


def exit_on_failure(args: threading.ExceptHookArgs) -> None:
    """Ends the process: the conductor notices a failed process, but not a failed thread."""
    sys.__excepthook__(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    os._exit(1)


def watch_stdin() -> None:
    sys.stdin.buffer.read()
    stopping.set()


def main() -> None:
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    threading.excepthook = exit_on_failure
    threading.Thread(target=watch_stdin, daemon=True).start()
    client = locksidecar.Client(config["socket"])
    tasks = config["actors"] // 2
    threads = [threading.Thread(target=Actor(n, client).run) for n in range(config["actors"] - tasks)]
    for t in threads:
        t.start()
    if tasks:
        asyncio.run(run(tasks))
    for t in threads:
        t.join()
    client.close()


main()

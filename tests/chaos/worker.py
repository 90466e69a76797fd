"""A client process of the chaos run, in Python: it does what worker.go does, with threads and with tasks."""

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
from typing import Any

import locksidecar
from locksidecar import aio

Fields = dict[str, Any]

orders: Fields = json.loads(os.environ["CHAOS_WORKER"])
over = threading.Event()  # no new section is to be begun
ops = itertools.count(1)
owners = itertools.count(1)

_log = os.open(os.path.join(orders["logs"], orders["client"] + ".jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def record(kind: str, at: int, op: int, **fields: Any) -> None:
    event = {"ev": kind, "t": at, "c": orders["client"], "op": op, **{k: v for k, v in fields.items() if v}}
    os.write(_log, json.dumps(event).encode() + b"\n")


def until(deadline: float) -> int:
    """A float has a little less than a nanosecond to spare."""
    return int(deadline * 1e9) - 1000


KINDS: dict[type[BaseException], str] = {
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


def failure(e: BaseException | None) -> Fields:
    if e is None:
        return {}
    kind = next((kind for cls, kind in KINDS.items() if isinstance(e, cls)), "other")
    return {
        "err": kind,
        "reason": getattr(e, "reason", ""),
        "maybe": getattr(e, "may_have_happened", False),
        "msg": "" if kind in ("timeout", "canceled", "lost") else f"{type(e).__name__}: {e}",
    }


class Section:
    """One acquire that was granted, and what is said of it."""

    def __init__(self, op: int, held: locksidecar.Held | aio.Held) -> None:
        self.op = op
        self.held = held
        self.lost = False
        record("grant", now(), op, token=held.token, until=until(held.deadline))

    def check(self) -> bool:
        before = now()
        try:
            self.held.check()
        except locksidecar.LockLost as e:
            self.tell(before, e)
            return False
        deadline = until(self.held.deadline)
        record("check", now(), self.op, b=before, until=deadline)
        return True

    def tell(self, before: int, e: locksidecar.LockLost) -> None:
        if not self.lost:
            self.lost = True
            record("lost", now(), self.op, b=before, reason=e.reason)

    def leaving(self) -> int:
        """Written before it is done, so that nothing is believed in after it."""
        before = now()
        record("release", before, self.op)
        return before

    def left(self, before: int, e: BaseException | None) -> None:
        record("released", now(), self.op, b=before, **failure(e))

    def leave(self) -> None:
        before = self.leaving()
        error: BaseException | None = None
        try:
            self.held.release()
        except locksidecar.LocksidecarError as e:
            error = e
        self.left(before, error)

    def writing(self) -> tuple[int, Fields]:
        before = now()
        value = f"{orders['client']}/{self.op}/{before}"
        return before, {"lock": self.held.name, "token": self.held.token, "value": value}

    def written(self, before: int, asked: Fields, done: Fields) -> None:
        record("write", now(), self.op, b=before, token=asked["token"], value=asked["value"], **done)


class Dice:
    def __init__(self, n: int) -> None:
        self.dice = random.Random(orders["seed"] * 1000 + n)

    def up_to(self, seconds: float) -> float:
        return self.dice.random() * seconds

    def hot(self) -> str:
        return f"hot:{self.dice.randrange(orders['hot'])}"

    def cool(self) -> str:
        return f"cool:{self.dice.randrange(orders['cool'])}"

    def any(self) -> str:
        return self.cool() if self.dice.randrange(4) == 0 else self.hot()

    def think(self) -> float:
        return self.up_to(2 * orders["think_ms"] / 1000)

    def limit_ms(self) -> int:
        return 1 + int(self.up_to(500))

    def lease_ms(self) -> int:
        return 300 + int(self.up_to(1200))

    def most_ms(self) -> int:
        return 100 + int(self.up_to(500))


LEASE = orders["lease_ms"] / 1000


def asks(lock: str, **fields: Any) -> int:
    op = next(ops)
    record("invoke", now(), op, lock=lock, **fields)
    return op


# --- Threads ---


class Actor(Dice):
    """A thread that does one thing after the other."""

    PARTS = (
        (50, "short"),
        (3, "long"),
        (10, "reenter"),
        (15, "once"),
        (10, "limited"),
        (4, "fixed_lease"),
        (3, "max_hold"),
    )

    def __init__(self, n: int, client: locksidecar.Client) -> None:
        super().__init__(n)
        self.client = client
        self.register: socket.socket | None = None

    def act(self) -> None:
        weights, names = [w for w, _ in self.PARTS], [name for _, name in self.PARTS]
        while not over.is_set():
            over.wait(self.think())
            play: Callable[[], None] = getattr(self, self.dice.choices(names, weights)[0])
            play()

    def enter(self, lock: locksidecar.Lock, timeout: float | None = None, **asked: Any) -> Section | None:
        op = asks(lock.name, **asked)
        try:
            if not lock.acquire(timeout=timeout):
                raise locksidecar.LockTimeout("in time")
        except locksidecar.LocksidecarError as e:
            record("error", now(), op, **failure(e))
            if isinstance(e, locksidecar.Unavailable):
                over.wait(0.05)
            return None
        return Section(op, lock.held)

    def write(self, s: Section) -> None:
        if self.register is None:
            self.register = socket.socket(socket.AF_UNIX)
            self.register.connect(orders["register"])
        before, asked = s.writing()
        self.register.sendall(json.dumps(asked).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self.register.recv(4096) or b"\n"  # the end: the run is over, and this is no answer
        s.written(before, asked, json.loads(answer))

    def brief(self, s: Section | None) -> None:
        if s is not None:
            self.write(s)
            time.sleep(self.up_to(0.005))
            s.check()
            s.leave()

    def lasting(self, s: Section | None, seconds: float) -> None:
        if s is None:
            return
        end = time.monotonic() + seconds
        while time.monotonic() < end and not over.is_set():
            self.write(s)
            over.wait(0.05 + self.up_to(0.2))
            if not s.check():
                break
        if s.lost and self.dice.randrange(2) == 0:
            self.write(s)  # too late; the token tells
        s.leave()

    def short(self) -> None:
        self.brief(self.enter(self.client.lock(self.any())))

    def long(self) -> None:
        self.lasting(self.enter(self.client.lock(self.cool())), self.up_to(1.5 * LEASE))

    def reenter(self) -> None:
        slow = self.dice.randrange(8) == 0  # time for something to happen in between
        lock = self.client.rlock(self.cool() if slow else self.any())
        owner = next(owners)
        outer = self.enter(lock, owner=owner)
        if outer is None:
            return
        if slow:
            over.wait(self.up_to(LEASE / 2))
        self.brief(self.enter(lock, owner=owner))
        outer.check()
        outer.leave()

    def once(self) -> None:
        self.brief(self.enter(self.client.lock(self.any()), timeout=0, wait=1))

    def limited(self) -> None:
        wait = self.limit_ms()
        self.brief(self.enter(self.client.lock(self.any()), timeout=wait / 1000, wait=wait))

    def fixed_lease(self) -> None:
        lease = self.lease_ms()
        s = self.enter(self.client.lock(self.cool(), lease=lease / 1000), lease=lease)
        self.lasting(s, self.up_to(1.5 * lease / 1000))

    def max_hold(self) -> None:
        most = self.most_ms()
        s = self.enter(self.client.lock(self.cool(), max_hold=most / 1000), maxhold=most)
        self.lasting(s, self.up_to(1.5 * most / 1000))


# --- Tasks ---


class Task(Dice):
    """An asyncio task that does one thing after the other; its bodies are cancelled when a lock is lost."""

    PARTS = ((60, "short"), (5, "long"), (20, "limited"), (5, "max_hold"), (10, "cancelled"))

    def __init__(self, n: int, client: aio.Client) -> None:
        super().__init__(n)
        self.client = client
        self.register: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def act(self) -> None:
        weights, names = [w for w, _ in self.PARTS], [name for _, name in self.PARTS]
        while not over.is_set():
            await asyncio.sleep(self.think())
            play: Callable[[], Coroutine[Any, Any, None]] = getattr(self, self.dice.choices(names, weights)[0])
            await play()

    async def write(self, s: Section) -> None:
        if self.register is None:
            self.register = await asyncio.open_unix_connection(orders["register"])
        reader, writer = self.register
        before, asked = s.writing()
        try:
            writer.write(json.dumps(asked).encode() + b"\n")
            done = json.loads(await reader.readline())
        except BaseException:
            writer.close()  # its answer would be taken for that of the next one
            self.register = None
            raise
        s.written(before, asked, done)

    async def section(self, lock: aio.Lock, seconds: float, **asked: Any) -> None:
        op = asks(lock.name, **asked)
        s: Section | None = None
        before = 0
        error: BaseException | None = None
        try:
            async with lock as held:
                s = Section(op, held)
                try:
                    await self.stay(s, seconds)
                finally:  # the body may have been cancelled
                    before = s.leaving()
        except (locksidecar.LocksidecarError, asyncio.CancelledError) as e:
            error = e
        if s is not None:
            s.left(before, error if isinstance(error, locksidecar.LocksidecarError) else None)
            return
        record("error", now(), op, **failure(error))
        if isinstance(error, locksidecar.Unavailable):
            await asyncio.sleep(0.05)

    async def stay(self, s: Section, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            await self.write(s)
            left = end - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, 0.05 + self.up_to(0.2))))
            if not s.check() or left <= 0 or over.is_set():
                return

    async def short(self) -> None:
        await self.section(self.client.lock(self.any()), self.up_to(0.005))

    async def long(self) -> None:
        await self.section(self.client.lock(self.cool()), self.up_to(1.5 * LEASE))

    async def limited(self) -> None:
        wait = self.limit_ms()
        await self.section(self.client.lock(self.any(), timeout=wait / 1000), self.up_to(0.005), wait=wait)

    async def max_hold(self) -> None:
        most = self.most_ms()
        lock = self.client.lock(self.cool(), max_hold=most / 1000)
        await self.section(lock, self.up_to(1.5 * most / 1000), maxhold=most)

    async def cancelled(self) -> None:
        section = asyncio.create_task(self.section(self.client.lock(self.any()), self.up_to(0.005)))
        await asyncio.sleep(self.up_to(0.1))
        section.cancel()
        await asyncio.wait([section])
        section.result()


async def act(actors: int) -> None:
    async with aio.Client(orders["socket"]) as client:
        await asyncio.gather(*(Task(1000 + n, client).act() for n in range(actors)))


def give_up(args: threading.ExceptHookArgs) -> None:
    """An actor that fails is a process that fails: nobody looks at a thread."""
    sys.__excepthook__(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    os._exit(1)


def watch_stdin() -> None:
    sys.stdin.buffer.read()
    over.set()


def main() -> None:
    faulthandler.register(signal.SIGQUIT, all_threads=True)
    threading.excepthook = give_up
    threading.Thread(target=watch_stdin, daemon=True).start()
    client = locksidecar.Client(orders["socket"])
    tasks = orders["actors"] // 2
    threads = [threading.Thread(target=Actor(n, client).act) for n in range(orders["actors"] - tasks)]
    for t in threads:
        t.start()
    if tasks:
        asyncio.run(act(tasks))
    for t in threads:
        t.join()
    client.close()


main()

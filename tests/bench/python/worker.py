"""A process of the benchmark that locks from Python.

The conductor writes a line of JSON that says what to do, then "go", then "stop"; the answers are lines of JSON too.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

WARMUP_PAIRS = 20
TAKERS = 64
RETRY_S = 0.001
# Of python-redis-lock. 5,000 threads kept their locks; 10,000 on two cores lost a third of them within 25 seconds and
# kept everything else from running.
MAX_RENEWAL_THREADS = 5000

now = time.monotonic_ns


class Lock(Protocol):
    def acquire(self) -> bool: ...
    def release(self) -> None: ...


@dataclass(slots=True, frozen=True)
class Spec:
    contender: str
    mode: str  # pairs, hold or wait
    redis: str = ""  # URL
    socket: str = ""  # of the sidecar
    names: tuple[str, ...] = ()  # pairs: one worker for each; wait: the lock that is waited for
    work_s: float = 0  # pairs: how long a lock is kept
    lease_s: float = 30
    prefix: str = ""  # hold: the locks are prefix0, prefix1, …
    count: int = 0  # hold: how many
    records: str = ""  # pairs: the file for the samples
    of: int = 0  # one permit each of semaphores with so many, in place of locks; 0: locks


def parse(line: str) -> Spec:
    fields: dict[str, Any] = json.loads(line)
    return Spec(
        contender=fields["contender"],
        mode=fields["mode"],
        redis=fields.get("redis", ""),
        socket=fields.get("socket", ""),
        names=tuple(fields.get("names") or ()),
        work_s=fields.get("work_us", 0) / 1e6,
        lease_s=fields.get("lease_ms", 30_000) / 1e3,
        prefix=fields.get("prefix", ""),
        count=fields.get("count", 0),
        records=fields.get("records", ""),
        of=fields.get("of", 0),
    )


class Failures:
    """How many acquires, releases and renewals failed, and how the first one did."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._count = 0
        self._first = ""

    def add(self, e: Exception) -> None:
        with self._mutex:
            self._count += 1
            self._first = self._first or f"{type(e).__name__}: {e}"

    def send(self) -> None:
        with self._mutex:
            send("done", errors=self._count, first_error=self._first)


failures = Failures()


@dataclass(slots=True, frozen=True)
class Contender:
    lock: Callable[[str], Lock]
    """A lock by name, for as long as a worker lives."""

    keep: Callable[[Lock], None] = lambda _: None
    """Sees to it that a lock that was acquired is renewed, where the library does not."""


# Each contender imports what it needs and nothing else: dozens of processes start at once.


def locksidecar_py(spec: Spec) -> Contender:
    import locksidecar

    client = locksidecar.connect(spec.socket)

    class Permit:
        """One permit, as a lock."""

        def __init__(self, name: str) -> None:
            self._semaphore = client.semaphore(name, permits=spec.of)

        def acquire(self) -> bool:
            self._held = self._semaphore.acquire()
            return True

        def release(self) -> None:
            self._held.release()

    return Contender(Permit if spec.of else client.lock)


def redis_py(spec: Spec, sleep: float = 0.1) -> Contender:
    import redis
    from redis.lock import Lock as RedisLock

    client = redis.Redis.from_url(spec.redis)
    if spec.mode != "hold":
        return Contender(lambda name: client.lock(name, timeout=spec.lease_s, sleep=sleep))

    # redis-py has reacquire() and leaves it to its user to call it: here one thread does, for all locks.
    held: list[RedisLock] = []

    def reacquire() -> None:
        while True:
            begun = time.monotonic()
            for lock in held[:]:
                try:
                    lock.reacquire()
                except Exception as e:
                    failures.add(e)
            time.sleep(max(0, begun + spec.lease_s / 3 - time.monotonic()))

    def keep(lock: Lock) -> None:
        assert isinstance(lock, RedisLock)
        held.append(lock)

    threading.Thread(target=reacquire, daemon=True).start()
    return Contender(lambda name: client.lock(name, timeout=spec.lease_s, sleep=sleep, thread_local=False), keep)


def python_redis_lock(spec: Spec) -> Contender:
    import redis
    import redis_lock  # type: ignore[import-not-found,import-untyped,unused-ignore]

    # It renews with a thread for each lock.
    hold = spec.mode == "hold"
    if hold and spec.count > MAX_RENEWAL_THREADS:
        raise ValueError(
            f"python-redis-lock renews with a thread for each lock: {spec.count} are too many, "
            f"because 10000 threads on two cores lost a third of their locks; at most {MAX_RENEWAL_THREADS}"
        )
    # Two of redis-py's defaults do not suit it. It waits in BLPOP for as long as the lease, which a socket's timeout of
    # 5 seconds would end with an error; and the thread of a lock ends, and with it the lock, when it wants to renew
    # while all of the pool's 100 connections are in use: here it waits for one.
    pool = redis.BlockingConnectionPool.from_url(spec.redis, max_connections=100, timeout=None, socket_timeout=None)
    client = redis.Redis(connection_pool=pool)
    expire = math.ceil(spec.lease_s)

    def lock(name: str) -> Lock:
        made: Lock = redis_lock.Lock(client, name, expire=expire, auto_renewal=hold)
        return made

    return Contender(lock)


def redis_semaphore(spec: Spec) -> Contender:
    """As its README has it: the permits of a process that dies are gone for good."""
    import redis
    from redis_semaphore import Semaphore  # type: ignore[import-not-found,import-untyped,unused-ignore]

    # It waits in BLPOP, without an end.
    pool = redis.BlockingConnectionPool.from_url(spec.redis, max_connections=100, timeout=None, socket_timeout=None)
    client = redis.Redis(connection_pool=pool)

    def permit(name: str) -> Lock:
        made: Lock = Semaphore(client, count=spec.of, namespace=name)
        return made

    return Contender(permit)


def self_limiters(spec: Spec) -> Contender:
    import asyncio

    from self_limiters import Semaphore  # type: ignore[import-not-found,import-untyped,unused-ignore]

    class Permit:
        """One permit, as a lock. Its library is asynchronous: each thread has a loop."""

        def __init__(self, name: str) -> None:
            self._semaphore = Semaphore(name, spec.of, expiry=math.ceil(spec.lease_s), redis_url=spec.redis)
            self._loop = asyncio.new_event_loop()

        def acquire(self) -> bool:
            self._loop.run_until_complete(self._enter())
            return True

        def release(self) -> None:
            self._loop.run_until_complete(self._exit())

        async def _enter(self) -> None:
            await self._semaphore.__aenter__()

        async def _exit(self) -> None:
            await self._semaphore.__aexit__(None, None, None)

    return Contender(Permit)


CONTENDERS: dict[str, Callable[[Spec], Contender]] = {
    "locksidecar-py": locksidecar_py,
    "redis-py": redis_py,
    "redis-py-1ms": lambda spec: redis_py(spec, sleep=0.001),
    "python-redis-lock": python_redis_lock,
    "redis-semaphore": redis_semaphore,
    "self-limiters": self_limiters,
}


class Workers:
    """Threads that warm up when they are made and go to work all at once."""

    def __init__(self, contender: Contender, work: list[Callable[[], None]], warmup: int = WARMUP_PAIRS) -> None:
        self._go = threading.Event()
        self._failure: Exception | None = None
        self._threads: list[threading.Thread] = []
        warm = threading.Barrier(len(work) + 1)
        for i, w in enumerate(work):
            lock = contender.lock(f"warm:{os.getpid()}:{i}")
            thread = threading.Thread(target=self._run, args=(lock, warmup, warm, w), daemon=True)
            thread.start()
            self._threads.append(thread)
        warm.wait()
        if self._failure is not None:
            raise self._failure

    def _run(self, lock: Lock, warmup: int, warm: threading.Barrier, work: Callable[[], None]) -> None:
        try:
            for _ in range(warmup):
                lock.acquire()
                lock.release()
        except Exception as e:
            self._failure = e
        warm.wait()
        self._go.wait()
        work()

    def begin(self) -> None:
        send("ready")
        line = sys.stdin.readline().strip()
        if line != "go":
            raise ValueError(f"go was expected, not {line!r}")
        self._go.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def pairs(spec: Spec, contender: Contender) -> None:
    stopping = threading.Event()
    # For each worker its samples: asked, granted, leaving, done of each pair, zero where it has not happened.
    samples = [array("q") for _ in spec.names]
    unhappened = array("q", (0, 0, 0, 0))

    def loop(lock: Lock, samples: array[int]) -> None:
        acquire, release, work_s = lock.acquire, lock.release, spec.work_s
        while not stopping.is_set():
            pair = len(samples)
            samples.extend(unhappened)
            while True:
                samples[pair] = now()
                try:
                    acquire()
                    break
                except Exception as e:
                    failures.add(e)
                    time.sleep(RETRY_S)
            samples[pair + 1] = now()
            if work_s:
                time.sleep(work_s)
            samples[pair + 2] = now()
            try:
                release()
            except Exception as e:
                failures.add(e)
            samples[pair + 3] = now()

    def worker(name: str, samples: array[int]) -> Callable[[], None]:
        lock = contender.lock(name)
        return lambda: loop(lock, samples)

    workers = Workers(contender, [worker(n, s) for n, s in zip(spec.names, samples, strict=True)])
    workers.begin()
    await_stop()
    stopping.set()
    with open(spec.records, "wb") as file:
        for s in samples:
            # A copy, made at once: its thread may still be about to write into it.
            file.write(s.tobytes())


def hold(spec: Spec, contender: Contender) -> None:
    held: list[Lock] = []

    def take(names: Iterator[str]) -> None:
        for name in names:
            lock = contender.lock(name)
            try:
                lock.acquire()
            except Exception as e:
                failures.add(e)
                continue
            held.append(lock)
            contender.keep(lock)

    def taker(first: int) -> Callable[[], None]:
        return lambda: take(f"{spec.prefix}{n}" for n in range(first, spec.count, TAKERS))

    workers = Workers(contender, [taker(i) for i in range(min(TAKERS, spec.count))], warmup=0)
    workers.begin()
    workers.join()
    send("held", count=len(held))
    await_stop()


def wait(spec: Spec, contender: Contender) -> None:
    lock = contender.lock(spec.names[0])

    def acquire() -> None:
        while True:
            try:
                lock.acquire()
                break
            except Exception as e:
                failures.add(e)
                time.sleep(RETRY_S)
        send("granted", at=now())
        try:
            lock.release()
        except Exception as e:
            failures.add(e)

    Workers(contender, [acquire]).begin()
    await_stop()


MODES: dict[str, Callable[[Spec, Contender], None]] = {"pairs": pairs, "hold": hold, "wait": wait}


def await_stop() -> None:
    line = sys.stdin.readline().strip()
    if line not in ("stop", ""):
        raise ValueError(f"stop was expected, not {line!r}")


def send(event: str, **fields: str | int) -> None:
    os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")


def thread_ended(e: threading.ExceptHookArgs) -> None:
    """python-redis-lock has nobody to tell that a renewal failed."""
    failures.add(e.exc_value if isinstance(e.exc_value, Exception) else RuntimeError(f"a thread ended: {e.exc_type}"))


def main() -> NoReturn:
    threading.excepthook = thread_ended
    try:
        spec = parse(sys.stdin.readline())
        MODES[spec.mode](spec, CONTENDERS[spec.contender](spec))
        failures.send()
    except Exception as e:
        send("error", msg=f"{type(e).__name__}: {e}")
        os._exit(1)
    os._exit(0)


main()

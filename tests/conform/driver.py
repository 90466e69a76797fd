"""Lets `locksidecar conform` play its scenes to the Python SDK.

`driver.py threads` drives the client for threads, `driver.py asyncio` that for asyncio. docs/conformance.md describes
what a driver reads and writes.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import locksidecar
from locksidecar import aio

Object = dict[str, Any]

FEATURES = [
    "resume",
    "owners",
    "concurrent",
    "limit",
    "confirm",
    "lease",
    "max_hold",
    "crash_delay",
    "keep",
    "read_write",
    "permits",
]

# The first class that fits counts.
ERRORS: list[tuple[type[BaseException], str]] = [
    (locksidecar.Unconfirmed, "unconfirmed"),
    (locksidecar.LockTimeout, "timeout"),
    (locksidecar.LockLost, "lost"),
    (locksidecar.NotHeld, "not_held"),
    (locksidecar.Deadlock, "deadlock"),
    (locksidecar.Unavailable, "unavailable"),
    (locksidecar.Denied, "denied"),
    (locksidecar.LimitExceeded, "limit"),
    (locksidecar.Unsupported, "unsupported"),
    (locksidecar.ClientClosed, "closed"),
    (asyncio.CancelledError, "canceled"),
]

output = threading.Lock()


def report(**fields: Any) -> None:
    with output:
        print(json.dumps(fields), flush=True)


def report_error(n: int, error: BaseException, **fields: Any) -> None:
    word = next((word for kind, word in ERRORS if isinstance(error, kind)), "other")
    if isinstance(error, locksidecar.LockLost):
        fields["reason"] = error.reason
    report(n=n, error=word, msg=str(error), **fields)


def options(command: Object) -> Object:
    """The arguments of Client.lock(), Client.rlock(), Client.rwlock() and Client.semaphore()."""
    wait, lease, most = (
        command.get("wait_ms"),
        command.get("lease_ms"),
        command.get("max_hold_ms"),
    )
    return {
        "timeout": None if wait is None else wait / 1000,
        "lease": lease and lease / 1000,
        "max_hold": most and most / 1000,
        "crash_delay": command.get("crash_delay_ms", 0) / 1000,
    }


class Threads:
    """The client for threads. Each owner is a thread, and so is each other command."""

    def __init__(self) -> None:
        self.client: locksidecar.Client | None = None
        self.handles: dict[str, locksidecar.Held] = {}
        self.owners: dict[int, queue.SimpleQueue[Object]] = {}

    def run(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            owner = command.get("owner")
            if command["do"] == "open":
                self.__init__()  # type: ignore[misc]
                self.execute(command)
            elif owner is None:
                threading.Thread(target=self.execute, args=(command,), daemon=True).start()
            else:
                if owner not in self.owners:
                    self.owners[owner] = queue.SimpleQueue()
                    threading.Thread(target=self.serve_owner, args=(self.owners[owner],), daemon=True).start()
                self.owners[owner].put(command)

    def serve_owner(self, commands: queue.SimpleQueue[Object]) -> None:
        while True:
            self.execute(commands.get())

    def execute(self, command: Object) -> None:
        n = command["n"]
        try:
            match command["do"]:
                case "open":
                    self.client = locksidecar.connect(command["socket"])
                    report(n=n, ok=True)
                case "acquire":
                    self.acquire(command)
                case "downgrade":
                    self.handles[command["as"]].downgrade()
                    report(n=n, ok=True)
                case "release":
                    self.handles[command["as"]].release(confirm=command.get("confirm", False))
                    report(n=n, ok=True)
                case "check":
                    self.handles[command["as"]].check()
                    report(n=n, held=True)
                case "close":
                    assert self.client is not None
                    self.client.close()
                    report(n=n, ok=True)
        except Exception as error:
            report_error(n, error, **({"held": False} if command["do"] == "check" else {}))

    def acquire(self, command: Object) -> None:
        assert self.client is not None
        if "of" in command:
            semaphore = self.client.semaphore(command["name"], permits=command["of"], **options(command))
            self.handles[command["as"]] = semaphore.acquire(command.get("permits", 1))
            report(n=command["n"], ok=True)
            return
        keep = command.get("keep_ms", 0) / 1000
        if "mode" in command:
            rw = self.client.rwlock(command["name"], **options(command))
            lock: locksidecar.Lock = rw.read() if command["mode"] == "shared" else rw.write(keep=keep)
        else:
            make = self.client.rlock if "owner" in command else self.client.lock
            lock = make(command["name"], keep=keep, **options(command))
        if not lock.acquire():
            report(n=command["n"], error="timeout")
            return
        held = self.handles[command["as"]] = lock.held
        report(n=command["n"], ok=True, token=str(held.token), shared=held.shared)


class Asyncio:
    """The client for asyncio. Each owner is a task, and so is each other command."""

    def __init__(self) -> None:
        self.client: aio.Client | None = None
        self.handles: dict[str, aio.Held] = {}
        self.owners: dict[int, asyncio.Queue[Object]] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            command = json.loads(line)
            owner = command.get("owner")
            if command["do"] == "open":
                self.__init__()  # type: ignore[misc]
            if command["do"] == "cancel":
                self.tasks[command["target"]].cancel()
                report(n=command["n"], ok=True)
            elif owner is None:
                # It has a task of its own, so that an acquire of no owner is one.
                self.tasks[command["n"]] = loop.create_task(self.execute(command))
                if command["do"] != "acquire":
                    self.tasks[command["n"]].add_done_callback(lambda task: task.result())
            else:
                if owner not in self.owners:
                    self.owners[owner] = asyncio.Queue()
                    self.tasks[-owner] = loop.create_task(self.serve_owner(self.owners[owner]))
                self.owners[owner].put_nowait(command)

    async def serve_owner(self, commands: asyncio.Queue[Object]) -> None:
        while True:
            await self.execute(await commands.get())

    async def execute(self, command: Object) -> None:
        n = command["n"]
        try:
            match command["do"]:
                case "open":
                    self.client = await aio.connect(command["socket"])
                    report(n=n, ok=True)
                case "acquire":
                    await self.acquire(command)
                case "downgrade":
                    await self.handles[command["as"]].downgrade()
                    report(n=n, ok=True)
                case "release":
                    if command.get("confirm"):
                        await self.handles[command["as"]].release(confirm=True)
                    else:
                        self.handles[command["as"]].release()
                    report(n=n, ok=True)
                case "check":
                    self.handles[command["as"]].check()
                    report(n=n, held=True)
                case "close":
                    assert self.client is not None
                    await self.client.aclose()
                    report(n=n, ok=True)
        except (Exception, asyncio.CancelledError) as error:
            report_error(n, error, **({"held": False} if command["do"] == "check" else {}))

    async def acquire(self, command: Object) -> None:
        assert self.client is not None
        if "of" in command:
            semaphore = self.client.semaphore(command["name"], permits=command["of"], **options(command))
            self.handles[command["as"]] = await semaphore.acquire(command.get("permits", 1))
            report(n=command["n"], ok=True)
            return
        keep = command.get("keep_ms", 0) / 1000
        if "mode" in command:
            rw = self.client.rwlock(command["name"], **options(command))
            lock: aio.Lock = rw.read() if command["mode"] == "shared" else rw.write(keep=keep)
        else:
            make = self.client.rlock if "owner" in command else self.client.lock
            lock = make(command["name"], keep=keep, **options(command))
        if not await lock.acquire():
            report(n=command["n"], error="timeout")
            return
        held = self.handles[command["as"]] = lock.held
        report(n=command["n"], ok=True, token=str(held.token), shared=held.shared)


def main() -> None:
    kinds: dict[str, Callable[[], None]] = {
        "threads": lambda: Threads().run(),
        "asyncio": lambda: asyncio.run(Asyncio().run()),
    }
    kind = sys.argv[1]
    features = [*FEATURES, "cancel"] if kind == "asyncio" else FEATURES
    report(driver=f"python-{kind}/{locksidecar.__version__}", features=features)
    kinds[kind]()


if __name__ == "__main__":
    main()

"""A client process for the tests, in Python: the commands and answers are those of worker.go."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import locksidecar
import redis

Fields = dict[str, Any]

client = locksidecar.connect()
handles: dict[str, locksidecar.Held] = {}
stop_poll = threading.Event()  # ends the running poll

CODES: dict[type[Exception], str] = {
    locksidecar.LockTimeout: "timeout",
    locksidecar.LockLost: "lost",
    locksidecar.Unconfirmed: "unconfirmed",
    locksidecar.NotHeld: "not_held",
    locksidecar.Deadlock: "deadlock",
    locksidecar.Unavailable: "unavailable",
    locksidecar.Denied: "denied",
    locksidecar.ClientClosed: "closed",
}


def acquire(name: str, c: Fields) -> locksidecar.Held:
    wait_ms, lease_ms, max_hold_ms = c["wait_ms"], c.get("lease_ms"), c.get("max_hold_ms")
    lock = client.lock(
        name,
        timeout=None if wait_ms < 0 else wait_ms / 1000,
        lease=None if lease_ms is None else lease_ms / 1000,
        max_hold=None if max_hold_ms is None else max_hold_ms / 1000,
    )
    if not lock.acquire():
        raise locksidecar.LockTimeout("held")
    return lock.held


def lock(c: Fields) -> Fields:
    held = acquire(c["name"], c)
    handles[c["as"]] = held
    return {"token": held.token, "at_ns": now()}


def unlock(c: Fields) -> Fields:
    handles[c["as"]].release(confirm=c.get("confirm", False))
    return {}


def check(c: Fields) -> Fields:
    handles[c["as"]].check()
    return {}


def lost(c: Fields) -> Fields:
    held = handles[c["as"]]
    while held.lost is None:
        time.sleep(0.002)
    return {"err": "lost", "reason": held.lost, "at_ns": now(), "deadline_ns": round(held.deadline * 1e9)}


def lock_many(c: Fields) -> Fields:
    for i in range(c["count"]):
        name = f"{c['name']}{i}"
        handles[name] = acquire(name, c)
    return {}


def hammer(c: Fields) -> Fields:
    counter = redis.Redis(unix_socket_path=c["redis"], client_name="counter", single_connection_client=True)
    rounds = []
    for _ in range(c["count"]):
        held = acquire(c["name"], c)
        read: Any = counter.get(c["key"])
        value = int(read or 0)
        counter.set(c["key"], value + 1)
        rounds.append({"value": value, "token": held.token})
        held.release()
    counter.close()
    return {"rounds": rounds}


def poll(c: Fields) -> Fields:
    stop_poll.clear()
    lock = client.lock(c["name"])
    wait_ms, count = c["wait_ms"], c.get("count", 0)
    tries = grants = longest = 0
    asked = time.monotonic_ns()
    end = asked + c["for_ms"] * 1_000_000
    while (left := end - time.monotonic_ns()) > 0 and not stop_poll.is_set() and (not count or grants < count):
        tries += 1
        if not lock.acquire(timeout=left / 1e9 if wait_ms < 0 else min(left / 1e9, wait_ms / 1000)):
            time.sleep(0.001)
            continue
        longest = max(longest, time.monotonic_ns() - asked)
        grants += 1
        lock.release()
        time.sleep(c.get("pause_ms", 0) / 1000)
        asked = time.monotonic_ns()
    return {"tries": tries, "grants": grants, "longest_ns": max(longest, time.monotonic_ns() - asked)}


def stop(c: Fields) -> Fields:
    stop_poll.set()
    return {}


def fork(c: Fields) -> Fields:
    pid = os.fork()
    if pid == 0:
        # The pipes are closed here, so that the test notices the end of the parent.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        time.sleep(600)
        os._exit(0)
    return {"pid": pid}


COMMANDS = {f.__name__: f for f in (lock, unlock, check, lost, lock_many, hammer, poll, stop, fork)}


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def answer(n: int, fields: Fields) -> None:
    os.write(1, json.dumps({"n": n, **fields}).encode() + b"\n")


def carry_out(c: Fields) -> None:
    try:
        fields = COMMANDS[c["do"]](c)
    except Exception as e:
        code = next((code for kind, code in CODES.items() if isinstance(e, kind)), "other")
        if code == "timeout" and c["wait_ms"] == 0:
            code = "held"
        fields = {"err": code, "msg": f"{type(e).__name__}: {e}"}
        if isinstance(e, locksidecar.LockLost):
            fields["reason"] = e.reason
    answer(c["n"], fields)


for line in sys.stdin:
    threading.Thread(target=carry_out, args=(json.loads(line),), daemon=True).start()
os._exit(0)

"""A till of the flash sale (`locksidecar demo`), in Python.

Orders come in on stdin and reports go out on stdout, one JSON object a line,
as in till.go.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import locksidecar
import redis


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def report(kind: str, **fields: object) -> None:
    os.write(1, json.dumps({"kind": kind, **fields}).encode() + b"\n")


class Till:
    """Sells one unit after the other by plain read, work, write."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.lock: str = setup["lock"]
        self.stock: str = setup["stock"]
        self.work: float = setup["work_ns"] / 1e9
        self.store = redis.Redis.from_url(setup["redis"], single_connection_client=True)
        self.client = locksidecar.connect(setup["socket"])
        self.told_to_hold = threading.Event()

    def sell(self) -> int | None:
        """Sell a unit; return which, or None when all are sold."""
        value: Any = self.store.get(self.stock)
        unit = int(value)
        if unit <= 0:
            return None
        time.sleep(self.work)  # the customer pays
        self.store.set(self.stock, unit - 1)
        return unit

    def sell_all_unlocked(self) -> None:
        while (unit := self.sell()) is not None:
            report("sale", unit=unit)

    def sell_all_locked(self) -> None:
        while True:
            asked = now()
            with self.client.lock(self.lock) as held:
                granted = now()
                if self.told_to_hold.is_set():
                    report("holding", token=held.token)
                    threading.Event().wait()  # until the kill
                unit = self.sell()
                token, sold = held.token, now()
            if unit is None:
                return
            report("sale", unit=unit, token=token, wait_ns=granted - asked, granted_ns=granted, sold_ns=sold)


def main() -> None:
    till = Till(json.loads(sys.stdin.readline()))
    selling: threading.Thread | None = None

    def phase(locked: bool) -> None:
        try:
            if locked:
                till.sell_all_locked()
            else:
                till.sell_all_unlocked()
            report("done")
        except Exception as err:
            report("error", err=f"{type(err).__name__}: {err}")

    report("ready")
    for line in sys.stdin:
        order = json.loads(line)["order"]
        if order == "hold":
            till.told_to_hold.set()
            continue
        if selling is not None:
            selling.join()
        selling = threading.Thread(target=phase, args=(order == "sell-locked",), daemon=True)
        selling.start()


if __name__ == "__main__":
    main()

"""Processes without a server: a ProcessPoolExecutor of each start method, and greenlets of eventlet."""

from __future__ import annotations

import multiprocessing
import random
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import locker
import locksidecar
from locker import Locker


def work(client: locksidecar.Client, until: float) -> None:
    client_locker = Locker(client)
    threads = [threading.Thread(target=operate, args=(client_locker, until)) for _ in range(2)]
    for thread in threads:
        thread.start()
    rng = random.Random()
    alarm = locker.AlarmInterrupter()
    while time.time() < until:
        client_locker.operate(rng, alarm)
    for thread in threads:
        thread.join()


def operate(client_locker: Locker, until: float) -> None:
    rng = random.Random()
    while time.time() < until:
        client_locker.operate(rng, None)


def pool(method: str, until: float) -> None:
    client = locksidecar.connect()
    with client.lock("parent"), ProcessPoolExecutor(4, multiprocessing.get_context(method)) as executor:
        for done in [executor.submit(work, client, until) for _ in range(4)]:
            done.result()


def greenlets(until: float) -> None:
    import eventlet

    client = locksidecar.Client()
    client.ping()
    eventlet.monkey_patch()
    client_locker = Locker(client, eventlet.sleep)
    for greenlet in [eventlet.spawn(operate, client_locker, until) for _ in range(12)]:
        greenlet.wait()


if __name__ == "__main__":
    kind, end = sys.argv[1], float(sys.argv[2])
    greenlets(end) if kind == "eventlet" else pool(kind, end)

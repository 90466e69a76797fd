"""The CPU that a lock/unlock pair costs the Python client, beside that of redis-py, in one run.

    .venv/bin/python tests/bench/python/cost.py --daemon bin/locksidecar [--rounds 9] [--pairs 3000] [--opentelemetry]

It starts a Redis and a daemon of its own. Each round measures every contender once, in turn, so that a noisy moment of
the machine meets all of them. A figure is the user and system time of this process for a pair: the median of the
rounds, and the median of the ratios to redis-py in the same round.

The tests install the API of OpenTelemetry, which a program without tracing does not have. --opentelemetry measures with
it: each acquire then looks for an SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import locksidecar
import redis
import redis.asyncio
from locksidecar import _tracing, aio

LEASE = 30.0


def sync_contenders(path: str, port: int) -> dict[str, Callable[[int], None]]:
    client, server = locksidecar.connect(path), redis.Redis(port=port)
    reused = client.lock("reused")

    def peer(pairs: int) -> None:
        for _ in range(pairs):
            with server.lock("peer", timeout=LEASE):
                pass

    def new_lock(pairs: int) -> None:
        for _ in range(pairs):
            with client.lock("new"):
                pass

    def one_lock(pairs: int) -> None:
        for _ in range(pairs):
            with reused:
                pass

    return {"redis-py": peer, "a lock for each pair": new_lock, "one lock": one_lock}


async def async_contenders(path: str, port: int) -> dict[str, Callable[[int], Awaitable[None]]]:
    client, server = await aio.connect(path), redis.asyncio.Redis(port=port)
    reused = client.lock("reused")

    async def peer(pairs: int) -> None:
        for _ in range(pairs):
            async with server.lock("peer", timeout=LEASE):
                pass

    async def new_lock(pairs: int) -> None:
        for _ in range(pairs):
            async with client.lock("new"):
                pass

    async def one_lock(pairs: int) -> None:
        for _ in range(pairs):
            async with reused:
                pass

    return {"redis-py": peer, "a lock for each pair": new_lock, "one lock": one_lock}


def show(kind: str, rounds: list[dict[str, float]]) -> None:
    for name in rounds[0]:
        cost = statistics.median(r[name] for r in rounds)
        ratios = [r[name] / r["redis-py"] for r in rounds]
        spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
        print(f"{kind:8} {name:22} {cost:6.1f} µs a pair   {statistics.median(ratios):.3f} ({spread})")


def measure_sync(path: str, port: int, rounds: int, pairs: int) -> list[dict[str, float]]:
    contenders = sync_contenders(path, port)
    found = []
    for number in range(rounds + 1):
        costs = {}
        for name, run in contenders.items():
            began = time.process_time()
            run(pairs)
            costs[name] = (time.process_time() - began) / pairs * 1e6
        if number:  # the first round warms up
            found.append(costs)
    return found


async def measure_async(path: str, port: int, rounds: int, pairs: int) -> list[dict[str, float]]:
    contenders = await async_contenders(path, port)
    found = []
    for number in range(rounds + 1):
        costs = {}
        for name, run in contenders.items():
            began = time.process_time()
            await run(pairs)
            costs[name] = (time.process_time() - began) / pairs * 1e6
        if number:
            found.append(costs)
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--opentelemetry", action="store_true")
    arguments = parser.parse_args()
    if not arguments.opentelemetry:
        _tracing.tracer = None
    with tempfile.TemporaryDirectory(prefix="cost-") as directory:
        port, path = free_port(), f"{directory}/socket"
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        daemon = subprocess.Popen(
            [arguments.daemon, "serve", "--socket", path, "--redis", f"redis://127.0.0.1:{port}/0"],
            stderr=(Path(directory) / "log").open("wb"),
        )
        try:
            locksidecar.connect(path).lock("warm", timeout=30).acquire()
            show("threads", measure_sync(path, port, arguments.rounds, arguments.pairs))
            show("asyncio", asyncio.run(measure_async(path, port, arguments.rounds, arguments.pairs)))
        finally:
            for process in daemon, server:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()

"""The SDK against the real sidecar and a Redis of its own: every way in which Python runs at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import locksidecar
from locksidecar import aio

BINARY = os.environ.get("LOCKSIDECAR_BINARY", "")
pytestmark = pytest.mark.skipif(not BINARY, reason="$LOCKSIDECAR_BINARY is not set; `make test` sets it")

LEASE = 1.5


class Daemon:
    def __init__(self, socket: Path, redis: str = "") -> None:
        self.socket = str(socket)
        self.redis = redis
        self.start()

    def start(self) -> None:
        command = [BINARY, "serve", "--socket", self.socket, "--lease", f"{LEASE}s"]
        command += ["--redis", self.redis] if self.redis else ["--embedded"]
        self.process = subprocess.Popen(command)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path / "s")
    yield daemon
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0


class Counter:
    """A number in a file, which only works if one at a time uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("0 0")

    def increment(self, token: int) -> None:
        count, newest = map(int, self.path.read_text().split())
        assert token > newest, "a token that is not larger than the one before"
        self.path.write_text(f"{count + 1} {token}")

    def value(self) -> int:
        return int(self.path.read_text().split()[0])


def work(lock: locksidecar.Lock, counter: Counter, times: int) -> None:
    for _ in range(times):
        with lock as held:
            counter.increment(held.token)
            held.check()


async def work_in_tasks(socket: str, counter: Counter, tasks: int, times: int) -> None:
    async with await aio.connect(socket) as client:

        async def task() -> None:
            for _ in range(times):
                async with client.lock("n") as held:
                    counter.increment(held.token)
                    await asyncio.sleep(0)
                    held.check()

        await asyncio.gather(*[task() for _ in range(tasks)])


def run_tasks(socket: str, counter: Counter, tasks: int, times: int) -> None:
    asyncio.run(work_in_tasks(socket, counter, tasks, times))


def forked(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_threads_tasks_and_processes_exclude_each_other(daemon: Daemon, tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    client = locksidecar.connect(daemon.socket)
    spawn, fork = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
    processes = [
        spawn.Process(target=work, args=(client.lock("n"), counter, 30)),
        spawn.Process(target=run_tasks, args=(daemon.socket, counter, 3, 10)),
        fork.Process(target=work, args=(client.lock("n"), counter, 30)),
    ]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=work, args=(client.lock("n"), counter, 30)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert counter.value() == 6 * 30


def test_prefork_workers_of_a_client_made_before(daemon: Daemon, tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    client = locksidecar.connect(daemon.socket)
    with client.lock("master"):  # what the master holds, no worker does
        pids = [forked(lambda: work(client.lock("n"), counter, 25)) for _ in range(4)]
        assert [exit_code(pid) for pid in pids] == [0] * 4
        assert not client.lock("master").acquire(blocking=False)
    assert counter.value() == 100


def test_killed_holder_frees_its_lock_although_a_child_has_its_socket(daemon: Daemon) -> None:
    client = locksidecar.connect(daemon.socket)
    ready, write = os.pipe()

    def holder() -> None:
        client.lock("n").acquire()
        os.write(write, str(forked(signal.pause)).encode())
        signal.pause()

    holding = forked(holder)
    child = int(os.read(ready, 32))
    try:
        assert not client.lock("n").acquire(blocking=False)
        os.kill(holding, signal.SIGKILL)
        os.waitpid(holding, 0)
        with client.lock("n", timeout=LEASE / 2):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_deadlock_between_two_processes_is_told_to_the_one_who_closes_it(daemon: Daemon) -> None:
    client = locksidecar.connect(daemon.socket)
    ready, write = os.pipe()

    def other() -> None:
        with client.lock("b"):
            os.write(write, b"x")
            with client.lock("a"):
                pass

    with client.lock("a"):
        pid = forked(other)
        os.read(ready, 1)
        while not (row := client.info("a")) or not row.waiting:
            pass
        with pytest.raises(locksidecar.Deadlock, match=f'you ask for "b", held by owner .* of pid {pid} '):
            client.lock("b").acquire()
    assert exit_code(pid) == 0


def test_a_daemon_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    """A lock outlives it to its deadline, and the client finds the new one by itself."""
    redis = subprocess.Popen(
        [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(tmp_path / "r"),
            "--save",
            "",
            "--logfile",
            str(tmp_path / "log"),
        ]
    )
    try:
        daemon = Daemon(tmp_path / "s", f"unix://{tmp_path / 'r'}")
        client = locksidecar.connect(daemon.socket)
        lock = client.lock("n")
        lock.acquire()
        held = lock.held
        assert held is not None
        daemon.kill()
        daemon.start()
        held.check()
        other = locksidecar.connect(daemon.socket)
        assert not other.lock("n").acquire(blocking=False)  # nobody gets it before its deadline
        with other.lock("n") as later:
            assert held.lost == "expired"
            assert later.token > held.token
        with client.lock("m"):
            pass
        daemon.process.terminate()
        assert daemon.process.wait(30) == 0
    finally:
        redis.terminate()
        redis.wait()

"""The SDK against the real sidecar and its own Redis: threads, tasks and processes at once."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from points import times
from test_readme import block_with

import locksidecar
from locksidecar import aio

BINARY = os.environ.get("LOCKSIDECAR_BINARY", "")
pytestmark = pytest.mark.skipif(not BINARY, reason="$LOCKSIDECAR_BINARY is not set; `make test` sets it")

# Seconds: no test waits for the end of such a lease, and no restart takes that long.
LEASE = 60.0
# For the tests that wait for the end of a lease. A daemon is started again within it.
SHORT_LEASE = 1.5


class Daemon:
    def __init__(self, socket: Path, redis: str = "", lease: float = LEASE) -> None:
        self.socket = str(socket)
        self.redis = redis
        self.lease = lease
        self.start()

    def start(self) -> None:
        command = [BINARY, "serve", "--socket", self.socket, "--lease", f"{self.lease}s"]
        command += ["--redis", self.redis] if self.redis else ["--embedded"]
        self.process = subprocess.Popen(command)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Its parameter is the lease."""
    daemon = Daemon(tmp_path / "s", lease=getattr(request, "param", LEASE))
    yield daemon
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0


class Counter:
    """A number in a file. Increments are lost if two run at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("0 0")

    def increment(self, token: int) -> None:
        count, newest = map(int, self.path.read_text().split())
        assert token > newest, "the token is not larger than the last one"
        self.path.write_text(f"{count + 1} {token}")

    def value(self) -> int:
        # The file is empty while it is written.
        while not (words := self.path.read_text().split()):
            pass
        return int(words[0])

    def wait_for(self, count: int) -> None:
        while self.value() < count:
            pass


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


def test_prefork_workers_share_a_client_made_before_the_fork(daemon: Daemon, tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    client = locksidecar.connect(daemon.socket)
    with client.lock("master"):  # the workers do not hold what the master holds
        pids = [forked(lambda: work(client.lock("n"), counter, 25)) for _ in range(4)]
        assert [exit_code(pid) for pid in pids] == [0] * 4
        assert not client.lock("master").acquire(blocking=False)
    assert counter.value() == 100


def test_killed_holder_frees_its_lock_while_its_child_lives(daemon: Daemon) -> None:
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
        with client.lock("n", timeout=LEASE / 3):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def use_permits(semaphore: locksidecar.Semaphore, log: Path, times: int, permits: int) -> None:
    with log.open("ab", buffering=0) as file:
        for _ in range(times):
            with semaphore.acquire(permits) as held:
                file.write(b"+%d " % permits)  # one write, at the end of the file
                held.check()
                file.write(b"-%d " % permits)


async def use_permits_in_tasks(socket: str, log: Path, tasks: int, times: int, permits: int) -> None:
    async with aio.connect(socket) as client:
        with log.open("ab", buffering=0) as file:

            async def task() -> None:
                for _ in range(times):
                    async with client.semaphore("n", permits=3).acquire(permits) as held:
                        file.write(b"+%d " % permits)
                        await asyncio.sleep(0)
                        held.check()
                        file.write(b"-%d " % permits)

            await asyncio.gather(*[task() for _ in range(tasks)])


def run_permits_in_tasks(socket: str, log: Path, tasks: int, times: int, permits: int) -> None:
    asyncio.run(use_permits_in_tasks(socket, log, tasks, times, permits))


def permits_in_use(log: Path) -> list[int]:
    """How many were in use, after each begin and each end."""
    return list(itertools.accumulate(map(int, log.read_text().split())))


def test_threads_tasks_and_processes_share_the_permits(daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "log"
    client = locksidecar.connect(daemon.socket)
    semaphore = client.semaphore("n", permits=3)
    spawn, fork = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
    processes = [
        spawn.Process(target=use_permits, args=(semaphore, log, 30, 2)),
        spawn.Process(target=run_permits_in_tasks, args=(daemon.socket, log, 3, 10, 1)),
        fork.Process(target=use_permits, args=(semaphore, log, 30, 1)),
    ]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=use_permits, args=(semaphore, log, 30, permits)) for permits in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    in_use = permits_in_use(log)
    assert len(in_use) == 2 * 6 * 30
    assert (max(in_use), in_use[-1]) == (3, 0)


def test_killed_process_frees_its_permits_while_its_child_lives(daemon: Daemon) -> None:
    client = locksidecar.connect(daemon.socket)
    semaphore = client.semaphore("n", permits=5)
    ready, write = os.pipe()

    def holder() -> None:
        semaphore.acquire(2)
        os.write(write, str(forked(signal.pause)).encode())
        signal.pause()

    with semaphore.acquire(2) as held:
        holding = forked(holder)
        child = int(os.read(ready, 32))
        try:
            assert semaphore.acquire(2, blocking=False) is None
            os.kill(holding, signal.SIGKILL)
            os.waitpid(holding, 0)
            with semaphore.acquire(3, timeout=LEASE / 3):
                held.check()
        finally:
            os.kill(child, signal.SIGKILL)


def test_process_that_closes_a_cycle_gets_deadlock(daemon: Daemon) -> None:
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


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    command = ["redis-server", "--port", "0", "--unixsocket", str(tmp_path / "r"), "--save", ""]
    server = subprocess.Popen([*command, "--logfile", str(tmp_path / "log")])
    while not listens(tmp_path / "r"):  # else a daemon that starts at once refuses a try with Unavailable
        pass
    yield f"unix://{tmp_path / 'r'}"
    server.terminate()
    server.wait()


@pytest.fixture
def restartable(tmp_path: Path, redis: str, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """A daemon that can be restarted with its state and its Redis. Its parameter is the lease."""
    daemon = Daemon(tmp_path / "s", redis, getattr(request, "param", LEASE))
    yield daemon
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0


def test_events_are_read_as_they_happen(daemon: Daemon) -> None:
    client, other = locksidecar.connect(daemon.socket), locksidecar.connect(daemon.socket)
    assert client.events().events == ()
    assert other.lock("n").acquire()
    begin = client.events()
    pages: list[locksidecar.EventPage] = []
    reader = threading.Thread(target=lambda: pages.append(client.events(begin.next, wait=True)))
    reader.start()
    other.force_release("n")
    reader.join(30)
    lost, forced = pages[0].events
    assert (lost.kind, lost.name, lost.reason, lost.pid) == ("lost", "n", "forced", os.getpid())
    assert (forced.kind, forced.hold, pages[0].missed) == ("forced", lost.hold, 0)

    async def read() -> locksidecar.EventPage:
        async with aio.connect(daemon.socket) as client:
            return await client.events(begin.next, wait=True)

    assert asyncio.run(read()) == pages[0]


def test_status_has_the_oldest_hold(daemon: Daemon) -> None:
    client = locksidecar.connect(daemon.socket)
    lock = client.lock("n")
    assert lock.acquire()
    while (status := client.status()).oldest_hold is None:
        pass  # a survey of the locks may be a little older
    assert (status.held, status.oldest_hold.name, status.oldest_hold.pid) == (1, "n", os.getpid())
    lock.release(confirm=True)  # the next request comes on another connection

    async def read() -> locksidecar.Status:
        async with aio.connect(daemon.socket) as client:
            return await client.status()

    status = asyncio.run(read())
    assert (status.redis, status.held, status.oldest_hold, status.restart, status.lost) == ("ok", 0, None, None, {})


def stop(daemon: Daemon) -> None:
    daemon.process.terminate()
    assert daemon.process.wait(30) == 0


def await_waiters(client: locksidecar.Client, n: int) -> None:
    while not (row := client.info("n")) or row.waiting < n:
        pass


@pytest.mark.parametrize("end", [Daemon.kill, stop])
def test_locks_and_waits_outlive_the_daemon(restartable: Daemon, end: Callable[[Daemon], None]) -> None:
    client, other = locksidecar.connect(restartable.socket), locksidecar.connect(restartable.socket)
    order: list[int] = []

    def wait(i: int) -> None:
        with other.lock("n", timeout=60) as held:
            order.append(i)
            held.check()

    with client.lock("n") as held:
        token = held.token
        threads = [threading.Thread(target=wait, args=(i,)) for i in range(3)]
        for n, thread in enumerate(threads, 1):
            thread.start()
            await_waiters(client, n)
        for _ in range(3):
            end(restartable)
            restartable.start()
            held.check()
            assert held.token == token
            await_waiters(client, 3)
            row = client.info("n")
            assert row is not None
            assert (row.token, row.absent) == (token, False)
        held.check()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2]


@pytest.mark.parametrize("end", [Daemon.kill, stop])
def test_permits_and_waits_outlive_the_daemon(restartable: Daemon, end: Callable[[Daemon], None]) -> None:
    client, other = locksidecar.connect(restartable.socket), locksidecar.connect(restartable.socket)
    order: list[int] = []

    def wait(permits: int) -> None:
        with other.semaphore("n", permits=5, timeout=60).acquire(permits) as held:
            order.append(permits)
            held.check()

    with other.semaphore("n", permits=5).acquire() as kept:
        with client.semaphore("n", permits=5).acquire(3) as held:
            tokens = (kept.token, held.token)
            threads = [threading.Thread(target=wait, args=(permits,)) for permits in (4, 2, 3)]
            for n, thread in enumerate(threads, 1):
                thread.start()
                await_waiters(client, n)
            for _ in range(3):
                end(restartable)
                restartable.start()
                held.check()
                kept.check()
                await_waiters(client, 3)
                row = client.info("n")
                assert row is not None
                assert (row.held, row.permits, row.of) == (2, 4, 5)
                assert {h.token for h in row.holders} == set(tokens)
                assert [h.absent for h in row.holders] == [False, False]
        while not order:
            pass
        assert order[0] == 4  # those after it would have fitted before
    for thread in threads:
        thread.join()


@pytest.fixture
def other_host(restartable: Daemon, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with the same Redis as restartable."""
    daemon = Daemon(tmp_path / "other", restartable.redis)
    yield daemon
    stop(daemon)


def test_hosts_share_the_permits(restartable: Daemon, other_host: Daemon) -> None:
    with locksidecar.connect(restartable.socket) as here, locksidecar.connect(other_host.socket) as there:
        semaphore = there.semaphore("n", permits=5)
        held = here.semaphore("n", permits=5).acquire(3)
        assert semaphore.acquire(3, blocking=False) is None
        with semaphore.acquire(2, timeout=20) as others:
            assert others.token > held.token
            assert here.semaphore("n", permits=5).acquire(blocking=False) is None
        granted = threading.Event()

        def wait() -> None:
            with semaphore.acquire(4):
                granted.set()

        thread = threading.Thread(target=wait)
        thread.start()
        while not (row := there.info("n")) or row.state != "remote":
            pass
        assert (row.kind, row.held, row.of, [w.permits for w in row.waiters]) == ("permits", 0, 5, [4])
        assert not granted.is_set()
        held.release()
        thread.join()


def test_events_name_the_permits(daemon: Daemon) -> None:
    with locksidecar.connect(daemon.socket) as client:
        held = client.semaphore("n", permits=5).acquire(3)
        client.force_release("n")
        while not (lost := [e for e in client.events().events if e.kind == "lost"]):
            pass
        assert [(e.name, e.permits, e.reason) for e in lost] == [("n", 3, "forced")]
        with pytest.raises(locksidecar.LockLost):
            held.release()


@pytest.mark.parametrize("restartable", [SHORT_LEASE], indirect=True)
def test_restarted_daemon_renews_for_a_process_that_has_not_reconnected(restartable: Daemon) -> None:
    client = locksidecar.connect(restartable.socket)
    with client.lock("n") as held:
        deadline = held.deadline
        restartable.kill()
        restartable.start()
        other = locksidecar.connect(restartable.socket)
        # Until the lease has ended that the first daemon set: without renewals the other client would get the lock.
        assert not other.lock("n").acquire(timeout=SHORT_LEASE)
        row = other.info("n")
        assert row is not None
        assert row.absent
        held.check()
        assert held.deadline > deadline
    with other.lock("n", timeout=30):
        pass


async def read_metrics(socket: str) -> str:
    async with await aio.connect(socket) as client:
        return await client.metrics()


def test_metrics_are_those_of_the_daemon(restartable: Daemon) -> None:
    client = locksidecar.connect(restartable.socket)
    with client.lock("n"):
        for text in client.metrics(), asyncio.run(read_metrics(restartable.socket)):
            assert "\nlocksidecar_holds 1\n" in text
            assert "\nprocess_open_fds " in text


def test_release_without_a_daemon_is_completed_later(restartable: Daemon) -> None:
    client = locksidecar.connect(restartable.socket)
    lock = client.lock("n")
    lock.acquire()
    restartable.kill()
    lock.release()
    restartable.start()
    with locksidecar.connect(restartable.socket).lock("n", timeout=LEASE / 3):
        pass
    assert client.ping() == "ok"  # ends the releaser


@pytest.mark.parametrize("restartable", [0.3], indirect=True)
# Shows docs/guarantees.md: No daemon starts, or only after the deadlines.
def test_daemon_that_does_not_come_back(restartable: Daemon) -> None:
    client = locksidecar.connect(restartable.socket)
    with pytest.raises(locksidecar.LockLost, match="expired"), client.lock("n") as held:
        restartable.kill()
        held.check()
        while held.lost is None:
            time.sleep(0.001)
        assert held.remaining == 0
    restartable.start()
    client.connect()


@pytest.mark.parametrize("restartable", [SHORT_LEASE], indirect=True)
def test_daemon_without_its_state_leaves_locks_until_their_deadlines(restartable: Daemon) -> None:
    """Locks stay valid until their deadlines, and no other owner gets them before."""
    client = locksidecar.connect(restartable.socket)
    lock = client.lock("n")
    lock.acquire()
    held = lock.held
    restartable.kill()
    os.unlink(f"{restartable.socket}.state")
    restartable.start()
    held.check()
    with locksidecar.connect(restartable.socket).lock("n", timeout=60) as later:
        assert held.lost == "expired"
        assert later.token > held.token


def test_tasks_exclude_each_other_over_restarts(restartable: Daemon, tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    socket = restartable.socket

    async def main() -> None:
        working = asyncio.create_task(work_in_tasks(socket, counter, 5, 40))
        async with await aio.connect(socket) as client, client.lock("held") as held:
            token = held.token
            for _ in range(3):
                await asyncio.to_thread(counter.wait_for, min(counter.value() + 10, 200))
                await asyncio.to_thread(restartable.kill)
                restartable.start()
            await working
            held.check()
            assert held.token == token

    asyncio.run(main())
    assert counter.value() == 200


def test_threads_and_processes_exclude_each_other_over_restarts(restartable: Daemon, tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    client = locksidecar.connect(restartable.socket)
    pids = [forked(lambda: work(client.lock("n"), counter, 60)) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(client.lock("n"), counter, 60)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        counter.wait_for(min(counter.value() + 20, 300))
        restartable.kill()
        restartable.start()
    for thread in threads:
        thread.join()
    assert [exit_code(pid) for pid in pids] == [0, 0]
    assert counter.value() == 300


CLOSES_ALL = """
import locksidecar, os, sys
client = locksidecar.connect(sys.argv[1])
with client.lock("kept") as kept:
    lock = client.lock("n")
    lock.acquire()
    token = lock.token
    os.closerange(3, 256)
    files = [os.open("/dev/null", os.O_WRONLY) for _ in range(20)]  # which get the numbers
    with locksidecar.connect(sys.argv[1]) as other, other.lock("n", timeout=30) as held:
        assert held.token > token
    assert kept.lost == "closed", kept.lost
    try:
        lock.release()
    except locksidecar.LockLost as e:
        assert e.reason == "closed", e
    else:
        raise AssertionError("the release of a lost lock")
    for _ in range(3):
        with lock as held:
            held.check()
    assert all(os.fstat(f) for f in files)
    os._exit(0)
"""


def test_client_works_after_all_descriptors_were_closed(daemon: Daemon) -> None:
    """As by DaemonContext(detach_process=False) of python-daemon."""
    subprocess.run(
        [sys.executable, "-c", CLOSES_ALL, daemon.socket],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=True,
    )


SLEEPERS = {
    "threads": """
import locksidecar, sys
client = locksidecar.connect(sys.argv[1])
lock = client.lock(sys.argv[2])
lock.acquire()
held = lock.held
print("held", flush=True)
while sys.stdin.readline():
    print(held.lost, flush=True)
""",
    "tasks": """
import asyncio, locksidecar, sys
async def main():
    async with locksidecar.aconnect(sys.argv[1]) as client, client.lock(sys.argv[2]) as held:
        print("held", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(held.lost, flush=True)
asyncio.run(main())
""",
}


def sleeper(daemon: Daemon, kind: str) -> subprocess.Popen[str]:
    """A process that holds the lock of this name, and prints its loss, or None, for each line that it reads."""
    return subprocess.Popen(
        [sys.executable, "-c", SLEEPERS[kind], daemon.socket, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("daemon", [1.0], indirect=True)
def test_process_stopped_past_its_lease_keeps_a_renewed_lock(daemon: Daemon) -> None:
    """The lease events have arrived meanwhile, and are read before the old deadline counts."""
    with (
        locksidecar.connect(daemon.socket) as client,
        sleeper(daemon, "threads") as threads,
        sleeper(daemon, "tasks") as tasks,
    ):
        for process in threads, tasks:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
        for _ in range(times(3, 1)):
            for process in threads, tasks:
                process.send_signal(signal.SIGSTOP)
            deadline = max(row.deadline_ns for row in client.list())
            while (left := deadline - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) > 0:
                time.sleep(left / 1e9)
            for process in threads, tasks:
                process.send_signal(signal.SIGCONT)
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "None\n"
        for process in threads, tasks:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0


STOPPED_HOLDER = """
import locksidecar, queue, sys, time
losses = queue.SimpleQueue()
client = locksidecar.connect(sys.argv[1])
lock = client.lock("n", max_hold=0.02, on_lost=losses.put)
while sys.stdin.readline():
    lock.acquire()
    print("held", flush=True)
    print(losses.get(timeout=30).reason, flush=True)
    try:
        lock.release()
    except locksidecar.LockLost:
        pass
end = time.monotonic() + 30
while client._shared._watcher_running and time.monotonic() < end:
    pass
print(losses.qsize(), flush=True)
"""


def test_loss_in_a_stopped_process_is_reported_once(daemon: Daemon) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_HOLDER, daemon.socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(times(100, 20)):
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.025)  # the end of max_hold, which began before "held"
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "max_hold\n"
        process.stdin.close()
        assert process.stdout.read() == "0\n"
        assert process.wait(30) == 0


def test_hosts_are_listed_and_asked(daemon: Daemon) -> None:
    with locksidecar.connect(daemon.socket) as client, client.lock("job") as held:
        while not (hosts := client.hosts()):  # until the daemon has published its name
            pass
        assert [host.pid for host in hosts] == [daemon.process.pid]
        assert hosts[0].host
        row = client.info("job", host=hosts[0].sidecar)
        assert row is not None
        assert (row.state, row.pid, row.token) == ("held", os.getpid(), held.token)
        assert [r.name for r in client.list(host=hosts[0].host)] == ["job"]
        found = client.who("job")
        assert (found.redis, found.key, [owner.host for owner in found.owners]) == ("ok", "lock", [hosts[0].host])
        assert found.holder is not None
        assert (found.holder.pid, found.holder.token) == (os.getpid(), held.token)
        readme: dict[str, Any] = {"client": client}
        exec(block_with("def holder_of"), readme)
        assert readme["holder_of"]("job").startswith(f"pid {os.getpid()} on {hosts[0].host}: ")
        assert readme["holder_of"]("another job") == "free"
        with pytest.raises(locksidecar.LocksidecarError, match="no sidecar has published"):
            client.info("job", host="no-such-host")
        with pytest.raises(locksidecar.Denied, match="other_hosts"):
            client.force_release("job", host=hosts[0].sidecar)
        with pytest.raises(locksidecar.Denied, match="not orphaned"):
            client.force_release_orphaned("job")
        with pytest.raises(locksidecar.NotHeld, match="free in Redis"):
            client.force_release_orphaned("another")
        with pytest.raises(locksidecar.LocksidecarError, match="no uuid of a sidecar"):
            client.force_release_orphaned("job", sidecar="db-7")
        row = client.info("job")
        assert row is not None
        assert row.token == held.token

"""Runs the Python client in every kind of server under faults, and counts the results.

    .venv-storm/bin/python tests/storm/storm.py --daemon bin/locksidecar [--seconds 8] [KIND …]

`make storm` runs it. It needs Python 3.11 or newer.

For each kind a server is started and kept busy. Meanwhile the daemon is killed with SIGKILL and restarted, and so are
workers, if the server replaces them. The exit status is 1 if two holders were in one section, a token was granted
twice, an operation raised an unexpected exception or did not end, or a lock stayed held at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import locksidecar

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
START_WAIT = 30.0

GUNICORN = [str(BIN / "gunicorn"), "--log-level", "error", "--preload", "--graceful-timeout", "5", "app:wsgi"]
UWSGI = [str(BIN / "uwsgi"), "--master", "--processes", "4", "--disable-logging", "--die-on-term", "--need-app"]
CELERY = [str(BIN / "celery"), "-A", "tasks", "worker", "-P", "prefork", "-c", "4", "-l", "ERROR"]


@dataclass(frozen=True)
class ServerKind:
    command: list[str]
    http: bool = True
    replaces_workers: bool = True  # it starts a new worker when one dies
    tasks: bool = False  # Celery's


def server_kinds(port: int, until: float) -> dict[str, ServerKind]:
    bind = f"127.0.0.1:{port}"
    pools = [sys.executable, str(HERE / "pools.py")]
    return {
        "gunicorn-sync": ServerKind([*GUNICORN, "-b", bind, "-w", "4"]),
        "gunicorn-gthread": ServerKind([*GUNICORN, "-b", bind, "-w", "2", "-k", "gthread", "--threads", "4"]),
        "gunicorn-gevent": ServerKind([*GUNICORN, "-b", bind, "-w", "2", "-k", "gevent"]),
        "uvicorn": ServerKind(
            [str(BIN / "uvicorn"), "app:asgi", "--port", str(port), "--workers", "2", "--log-level", "error"]
        ),
        "uwsgi": ServerKind([*UWSGI, "--http-socket", bind, "--wsgi-file", "app.py", "--callable", "wsgi"]),
        "celery": ServerKind(
            [*CELERY, "--without-gossip", "--without-mingle", "--without-heartbeat"], http=False, tasks=True
        ),
        "fork": ServerKind([*pools, "fork", str(until)], http=False, replaces_workers=False),
        "spawn": ServerKind([*pools, "spawn", str(until)], http=False, replaces_workers=False),
        "forkserver": ServerKind([*pools, "forkserver", str(until)], http=False, replaces_workers=False),
        "eventlet": ServerKind([*pools, "eventlet", str(until)], http=False, replaces_workers=False),
    }


@dataclass
class Results:
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0  # tokens that were granted twice
    killed_daemons: int = 0
    killed_workers: int = 0
    threads: list[str] = field(default_factory=list)  # where those of processes were that hung, or kept a lock
    still_held: list[str] = field(default_factory=list)

    def read(self, log: Path) -> None:
        tokens: Counter[str] = Counter()
        for line in log.read_text().splitlines():
            what, _, rest = line.partition(" ")
            self.counts[what] += 1
            if what == "held":
                tokens[rest] += 1
            elif what == "error":
                self.errors[re.sub(r"\d+", "N", rest)[:160]] += 1
        self.duplicates = sum(1 for n in tokens.values() if n > 1)

    def hangs(self) -> int:
        return sum("Timeout (" in text for text in self.threads)

    def passed(self) -> bool:
        return bool(self.counts["op"]) and not (
            self.counts["overlap"] or self.errors or self.duplicates or self.still_held or self.hangs()
        )


class Daemon:
    """A Redis server and the daemon that uses it."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.socket = str(directory / "socket")
        port = free_port()
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(directory)],
            stdout=subprocess.DEVNULL,
        )
        self.command = [binary, "serve", "--socket", self.socket, "--redis", f"redis://127.0.0.1:{port}/0"]
        self.log = (directory / "daemon.log").open("wb")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.redis.terminate()
        self.redis.wait()
        self.log.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def children(pid: int) -> list[int]:
    """The descendants of pid that have no children."""
    try:
        direct = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [leaf for child in direct for leaf in (children(child) or [child])]


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def send_requests(port: int, until: float) -> None:
    """Sends one request after the other. The requests of a worker that is killed fail."""
    while time.time() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/")
            connection.getresponse().read()
        connection.close()


def send_tasks(task: str, count: int, environment: dict[str, str]) -> None:
    code = f"import tasks\nfor _ in range({count}): {task}"
    subprocess.run([sys.executable, "-c", code], cwd=HERE, env=environment, check=True)


@contextlib.contextmanager
def keep_busy(kind: ServerKind, port: int, until: float, environment: dict[str, str]) -> Iterator[None]:
    threads: list[threading.Thread] = []
    if kind.http:
        end = time.time() + START_WAIT
        while not accepts_connections(port) and time.time() < end:
            time.sleep(0.02)
        threads = [threading.Thread(target=send_requests, args=(port, until)) for _ in range(12)]
    elif kind.tasks:
        send_tasks(f"tasks.operate.delay({until})", 200, environment)
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()


def storm(name: str, binary: str, seconds: float, show: bool) -> Results:
    results = Results()
    rng = random.Random(name)
    with tempfile.TemporaryDirectory(prefix="storm-") as directory:
        daemon = Daemon(binary, Path(directory))
        port, until = free_port(), time.time() + seconds
        kind = server_kinds(port, until)[name]
        environment = {
            **os.environ,
            "STORM_DIRECTORY": directory,
            "STORM_KIND": name,
            "LOCKSIDECAR_SOCKET": daemon.socket,
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "ignore",
        }
        with locksidecar.connect(daemon.socket) as client, (Path(directory) / "server.log").open("w+b") as output:
            server = subprocess.Popen(
                kind.command, cwd=HERE, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            log = Path(directory) / "log"
            with keep_busy(kind, port, until, environment):
                while not (log.exists() or server.poll() is not None) and time.time() < until + START_WAIT:
                    time.sleep(0.02)
                while time.time() < until:
                    time.sleep(0.2 + rng.random() * 0.6)
                    workers = children(server.pid)
                    if kind.replaces_workers and workers and rng.random() < 0.4:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rng.choice(workers), signal.SIGKILL)
                            results.killed_workers += 1
                    else:
                        daemon.kill()
                        results.killed_daemons += 1
            results.still_held = held_locks(client, server, kind, port, environment)
            stop(server)
            if log.exists():
                results.read(log)
            results.threads = [text for file in Path(directory).glob("hang-*") if (text := file.read_text())]
            output.seek(0)
            text = output.read().decode(errors="replace")
        daemon.stop()
    if show or not results.passed():
        print(text[-4000:])
    return results


def held_locks(
    client: locksidecar.Client,
    server: subprocess.Popen[bytes],
    kind: ServerKind,
    port: int,
    environment: dict[str, str],
) -> list[str]:
    """The locks that are still held 10 seconds after the end of the load."""
    if kind.tasks:  # they end on their own
        time.sleep(1)
    if not kind.replaces_workers and server.wait(60):
        return [f"no lock, but the processes failed with {server.returncode}"]
    end = time.time() + 10
    while True:
        rows = [row for row in client.list() if row.state == "held"]
        if not rows or time.time() > end:
            for pid in {row.pid for row in rows}:
                show_threads(pid)
            return [f"{row.name} by {row.pid} ({row.cmd}){', absent' if row.absent else ''}" for row in rows]
        if any(row.absent for row in rows):
            # The daemon was killed before it had read the last release of a worker, which is idle since. The next use
            # of the client completes it: see sdk/python/README.md.
            use_workers(kind, port, environment)
        time.sleep(0.05)


def use_workers(kind: ServerKind, port: int, environment: dict[str, str]) -> None:
    """Makes each worker use its client."""
    if kind.tasks:
        send_tasks("tasks.use.delay()", 40, environment)
    elif kind.http:
        threads = [threading.Thread(target=send_requests, args=(port, time.time() + 0.5)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def show_threads(pid: int) -> None:
    """Makes the HangDetector of a process write. Not every process has one: the signal ends those.

    The kernel delivers this signal before a later SIGTERM, whose number is larger, and the handler writes at once.
    """
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR2)


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def main() -> int:
    names = list(server_kinds(0, 0.0))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--show", action="store_true", help="what the servers print")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(names))
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.daemon)
    columns = ["ops", "holds", "interrupts", "handlers", "processes", "workers", "daemons"]
    columns += ["overlaps", "duplicates", "errors", "held", "hangs", "window"]
    print(" " * 17 + "".join(f"{column:>11}" for column in columns))
    passed = True
    for name in arguments.kinds or names:
        f = storm(name, binary, arguments.seconds, arguments.show)
        n = f.counts
        numbers = (n["op"], n["held"], n["interrupt"], n["handler"], n["process"], f.killed_workers, f.killed_daemons)
        rest = (n["overlap"], f.duplicates, sum(f.errors.values()), len(f.still_held), f.hangs(), n["window"])
        print(f"{name:17}" + "".join(f"{number:11}" for number in (*numbers, *rest)), flush=True)
        for text, count in f.errors.most_common(5):
            print(f"    {count} × {text}")
        for text in f.still_held[:5]:
            print(f"    still held: {text}")
        for text in f.threads[:2]:
            print(f"    threads:\n{text}")
        passed = passed and f.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

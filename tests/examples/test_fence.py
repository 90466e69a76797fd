"""examples/python on a real PostgreSQL: holders are killed while the server executes their statements.

A kill frees the lock within milliseconds, but not the statement: PostgreSQL executes it, whenever it gets to that. The
test decides when, so the order of the statements is certain. In the order "row" the write of the dead holder comes
before the first statement of the next one, and in the order "gate" between that one and its write.

$FENCE_KILLS is the number of kills for each example, 3 by default.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import getpass
import http.client
import http.server
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import celery
import locksidecar
import psycopg
import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "python"
KILLS = int(os.environ.get("FENCE_KILLS", "3"))
STOCK = 10
GATE = 4711  # the advisory lock on which a write of the stock waits

# The trigger runs before a statement that writes the stock has looked for its row.
SCHEMA = f"""
{(EXAMPLES / "schema.sql").read_text()}
CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END';
CREATE TRIGGER gate BEFORE UPDATE OF stock ON items EXECUTE FUNCTION pass_gate();
"""


def eventually(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        time.sleep(0.005)
    return result


@contextlib.contextmanager
def running(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, which is killed at the end with those that it has started."""
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    # A short name, for sockets, and one that the user of PostgreSQL can reach.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def find_postgres(directory: Path) -> tuple[Path, dict[str, str]]:
    """Returns the directory of the server's programs, and their environment. `make postgres` unpacks a server."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent, {}
    if installed := sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return installed[-1].parent, {}
    unpacked = ROOT / ".postgres"
    if not unpacked.exists():
        if os.environ.get("LOCKSIDECAR_REQUIRE_POSTGRES"):
            pytest.fail("no PostgreSQL: make postgres")
        pytest.skip("no PostgreSQL: make postgres")
    if os.geteuid() == 0:  # the user of the server may not be able to reach the repository
        unpacked = shutil.copytree(unpacked, directory / "server", symlinks=True)
    libraries = {str(path.parent) for path in unpacked.rglob("lib*.so.*")}
    return next(unpacked.glob("usr/lib/postgresql/*/bin")), {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


@pytest.fixture(scope="module")
def database(directory: Path) -> Iterator[str]:
    """A PostgreSQL on a Unix socket, of a user other than root, who must not run it."""
    programs, environment = find_postgres(directory)
    user = "nobody" if os.geteuid() == 0 else getpass.getuser()
    home = directory / "postgres"
    home.mkdir()
    shutil.chown(home, user)
    options: dict[str, Any] = {"user": user, "cwd": home, "env": {**os.environ, **environment, "TZ": "GMT"}}
    if os.geteuid() == 0:
        options |= {"group": os.stat(home).st_gid, "extra_groups": []}
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        home / "data",
        "-U",
        "shop",
        "-A",
        "trust",
        "--no-sync",
        "--locale=C",
        "-E",
        "UTF8",
    ]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **options)
    settings = ("listen_addresses=", f"unix_socket_directories={home}", "fsync=off", "timezone=GMT", "log_timezone=GMT")
    arguments = [word for setting in settings for word in ("-c", setting)]
    url = f"postgresql:///postgres?host={home}&user=shop"
    with (
        (home / "log").open("wb") as log,
        running(programs / "postgres", "-D", home / "data", *arguments, stderr=log, **options) as server,
    ):

        def answers() -> bool:
            assert server.poll() is None, (home / "log").read_text()
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(url).close()
                return True
            return False

        eventually("PostgreSQL answers", answers)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(SCHEMA)
        yield url
        server.send_signal(signal.SIGINT)  # it ends its connections
        server.wait(30)


@pytest.fixture(scope="module")
def redis(directory: Path) -> Iterator[str]:
    path = directory / "redis.sock"
    with running("redis-server", "--port", "0", "--unixsocket", path, "--save", "", stdout=subprocess.DEVNULL):
        eventually("Redis listens", path.exists)
        yield str(path)


@pytest.fixture(scope="module")
def sidecar(directory: Path, redis: str) -> Iterator[str]:
    path = directory / "sidecar.sock"
    with running(os.environ["LOCKSIDECAR_BINARY"], "serve", "--socket", path, "--redis", f"unix://{redis}") as daemon:
        eventually("the sidecar listens", path.exists)
        yield str(path)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0


class Prices:
    """The other service: a request waits for its answer until the test gives it."""

    def __init__(self) -> None:
        self.asked: queue.Queue[Callable[[], None]] = queue.Queue()
        prices = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answered = threading.Event()
                prices.asked.put(answered.set)
                answered.wait(30)
                self.send_response(200)
                self.send_header("Content-Length", "1")
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):
                    self.wfile.write(b"7")

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def prices() -> Iterator[Prices]:
    prices = Prices()
    thread = threading.Thread(target=prices.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield prices
    prices.server.shutdown()
    prices.server.server_close()
    thread.join()


class Stock:
    """What the test sees of the database, and the locks with which it delays statements."""

    def __init__(self, url: str) -> None:
        self.database = psycopg.connect(url, autocommit=True)
        self.blocker = psycopg.connect(url)

    def close(self) -> None:
        self.database.close()
        self.blocker.close()

    def add(self, item: str) -> None:
        self.database.execute("INSERT INTO items VALUES (%s, %s)", (item, STOCK))

    def block(self, order: str, item: str) -> None:
        if order == "row":
            self.blocker.execute("SELECT FROM items WHERE name = %s FOR UPDATE", (item,))
        else:
            self.blocker.execute("SELECT pg_advisory_xact_lock(%s)", (GATE,))

    def unblock(self) -> None:
        self.blocker.rollback()

    def blocked(self) -> set[int]:
        """The server processes whose statement waits for a lock."""
        rows = self.database.execute("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return {pid for (pid,) in rows}

    def connected(self) -> set[int]:
        rows = self.database.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        return {pid for (pid,) in rows}

    def wait_for_blocked(self, count: int) -> set[int]:
        eventually(f"{count} statements wait for a lock", lambda: len(self.blocked()) == count)
        return self.blocked()

    def lost(self, item: str) -> int:
        """The number of sales that the stock does not show."""
        row = self.database.execute(
            "SELECT (SELECT count(*) FROM sales WHERE item = name) - (%s - stock) FROM items WHERE name = %s",
            (STOCK, item),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def sales(self, item: str) -> set[str]:
        return {sale for (sale,) in self.database.execute("SELECT sale FROM sales WHERE item = %s", (item,))}


@pytest.fixture
def stock(database: str) -> Iterator[Stock]:
    stock = Stock(database)
    yield stock
    stock.close()


class Host:
    """A process that serves the application."""

    def __init__(self, pid: int, path: Path, executor: concurrent.futures.Executor) -> None:
        self.pid = pid
        self.path = path
        self.executor = executor
        eventually("the application serves", self.serves)

    def serves(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self.path))
            return True
        return False

    def sell(self, item: str, sale: str) -> concurrent.futures.Future[int]:
        """The status of the response, or 0 if the process has died."""

        def request() -> int:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX)
            with contextlib.closing(connection.sock):
                connection.sock.connect(str(self.path))
                try:
                    connection.request("PUT", f"/items/{item}/sales/{sale}")
                    return connection.getresponse().status
                except (http.client.RemoteDisconnected, ConnectionResetError):
                    return 0

        return self.executor.submit(request)


@pytest.fixture(scope="module")
def environment(database: str, redis: str, sidecar: str, prices: Prices) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database,
        "PRICES_URL": prices.url,
        "LOCKSIDECAR_SOCKET": sidecar,
        "CELERY_BROKER_URL": f"redis+socket://{redis}",
    }


@pytest.fixture(scope="module")
def start(directory: Path, environment: dict[str, str]) -> Iterator[Callable[[str, str], Host]]:
    """Starts a process that serves an application: its module, and the name of the process."""
    server = (sys.executable, Path(__file__).parent / "serve.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        running(*server, env={**environment, "PYTHONPATH": str(directory)}, **pipes) as process,
        concurrent.futures.ThreadPoolExecutor() as executor,
    ):

        def start(module: str, name: str) -> Host:
            path = directory / f"{module}-{name}.sock"
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{module} {path}\n")
            process.stdin.flush()
            return Host(int(process.stdout.readline()), path, executor)

        yield start


def sell_with_a_kill(stock: Stock, prices: Prices, order: str, item: str, victim: Host, survivor: Host) -> None:
    """Two sales of an item. The process of the first one is killed while the server executes its write."""
    stock.add(item)
    others = stock.connected()
    first = victim.sell(item, f"{item}-first")
    eventually(
        "the application asks for the price", lambda: not prices.asked.empty() or (first.done() and first.result())
    )
    answer = prices.asked.get_nowait()
    stock.block(order, item)
    answer()
    (late,) = stock.wait_for_blocked(1) - others
    os.kill(victim.pid, signal.SIGKILL)
    assert first.result(30) == 0
    second = survivor.sell(item, f"{item}-second")
    if order == "row":
        # Of the recipe the first statement waits, and asks for the price after that; of another way perhaps the last.
        asked = eventually("the next holder reads", lambda: len(stock.blocked()) == 2 or not prices.asked.empty())
        if not prices.asked.empty():
            prices.asked.get()()
            stock.wait_for_blocked(2)
            stock.unblock()
        else:
            assert asked
            stock.unblock()
            prices.asked.get(timeout=30)()
    else:
        answer = prices.asked.get(timeout=30)
        stock.unblock()
        eventually("the late statement ends", lambda: late not in stock.connected())
        answer()
    assert second.result(30) == 200
    eventually("no statement is executed", lambda: late not in stock.connected())
    assert f"{item}-second" in stock.sales(item)


@pytest.mark.parametrize(
    ("way", "orders", "lost"),
    [
        ("the recipe", ("row", "gate"), 0),
        ("smaller tokens are refused", ("row",), 1),
        ("only the read is fenced", ("gate",), 1),
    ],
)
# Shows docs/guarantees.md: A fence in a database.
def test_application_whose_process_is_killed_while_it_writes(
    directory: Path,
    start: Callable[[str, str], Host],
    stock: Stock,
    prices: Prices,
    way: str,
    orders: tuple[str, ...],
    lost: int,
) -> None:
    source = (EXAMPLES / "app.py").read_text()

    def replace(old: str, new: str) -> None:
        nonlocal source
        assert source.count(old) == 1
        source = source.replace(old, new)

    if way == "smaller tokens are refused":
        replace(
            "UPDATE items SET fence = %(token)s WHERE name = %(item)s AND fence <= %(token)s RETURNING stock",
            "SELECT stock FROM items WHERE name = %(item)s",
        )
        replace("SET stock = %(stock)s WHERE", "SET stock = %(stock)s, fence = %(token)s WHERE")
        replace("fence = %(token)s RETURNING name", "fence <= %(token)s RETURNING name")
    elif way == "only the read is fenced":
        replace("AND fence = %(token)s ", "")
    module = f"app{len(way)}"
    (directory / f"{module}.py").write_text(source)
    survivor = start(module, "survivor")
    for n in range(1 if lost else KILLS):
        order, item = orders[n % len(orders)], f"{module}-{n}"
        sell_with_a_kill(stock, prices, order, item, start(module, str(n)), survivor)
        assert stock.lost(item) == lost, f"kill {n}, order {order}"


# Shows docs/guarantees.md: A fence in a database.
def test_tasks_whose_worker_is_killed_while_it_writes(
    sidecar: str, environment: dict[str, str], stock: Stock, prices: Prices
) -> None:
    """The broker delivers the task again. The lost write and the second attempt make one sale."""
    app = celery.Celery(broker=environment["CELERY_BROKER_URL"])
    options = ("-c", "1", "-l", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
    command = (sys.executable, "-m", "celery", "-A", "tasks", "worker", *options)
    with (
        locksidecar.connect(sidecar) as client,
        running(*command, env=environment, cwd=EXAMPLES),
    ):
        for n in range(KILLS):
            order, item = ("row", "gate")[n % 2], f"task-{n}"
            stock.add(item)
            stock.block(order, item)
            app.send_task("tasks.sell", (item, "sale-" + item))
            if order == "gate":
                prices.asked.get(timeout=30)()
            stock.wait_for_blocked(1)
            holder = client.info(f"item:{item}")
            assert holder is not None
            os.kill(holder.pid, signal.SIGKILL)
            stock.wait_for_blocked(2)  # the first statement of the next attempt
            stock.unblock()
            prices.asked.get(timeout=30)()
            while client.info(f"item:{item}"):
                time.sleep(0.005)
            assert stock.sales(item) == {"sale-" + item}
            assert stock.lost(item) == 0, f"kill {n}, order {order}"


CHECK = "UPDATE fences SET fence = fence WHERE name = 'rows' AND fence = %s RETURNING 1"
ENTER = "UPDATE fences SET fence = %s WHERE name = 'rows' AND fence <= %s RETURNING 1"
READ = "SELECT stock FROM items WHERE name = %s"


@pytest.mark.parametrize(
    ("isolation", "check", "enter", "expected"),
    [
        ("READ COMMITTED", CHECK, (ENTER, READ), STOCK - 1),
        ("REPEATABLE READ", CHECK, (ENTER, READ), psycopg.errors.SerializationFailure),
        # What guarantees.md warns of reads the stock from before the write that it waited for.
        (
            "READ COMMITTED",
            CHECK,
            (f"WITH entered AS ({ENTER}) SELECT stock FROM items, entered WHERE name = %s",),
            STOCK,
        ),
        ("REPEATABLE READ", "SELECT FROM fences WHERE name = 'rows' AND fence = %s FOR UPDATE", (ENTER, READ), STOCK),
    ],
)
# Shows docs/guarantees.md: A fence in a database.
def test_fence_of_many_rows(
    database: str, stock: Stock, isolation: str, check: str, enter: tuple[str, ...], expected: object
) -> None:
    """The commit of a holder that died comes after the next holder has begun to write its token."""
    item = f"rows-{stock.database.info.backend_pid}"
    stock.add(item)
    stock.database.execute("CREATE TABLE IF NOT EXISTS fences (name text PRIMARY KEY, fence bigint)")
    stock.database.execute("INSERT INTO fences VALUES ('rows', 1) ON CONFLICT (name) DO UPDATE SET fence = 1")

    def next_holder() -> object:
        with psycopg.connect(database) as second:
            second.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            try:
                parameters: tuple[object, ...] = (2, 2, item)
                for statement in enter:
                    n = statement.count("%s")
                    row = second.execute(statement, parameters[:n]).fetchone()
                    parameters = parameters[n:]
            except psycopg.Error as e:
                return type(e)
            assert row is not None
            return row[0]

    with psycopg.connect(database) as first, concurrent.futures.ThreadPoolExecutor() as executor:
        first.execute(check, (1,))
        first.execute("UPDATE items SET stock = stock - 1 WHERE name = %s", (item,))
        got = executor.submit(next_holder)
        stock.wait_for_blocked(1)
        first.commit()
        assert got.result(timeout=30) == expected

"""name_prefix, the decorators, and the spans."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from fake import FakeSidecar
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import locksidecar
from locksidecar import BadRequest, Client, LockTimeout, NotHeld, _tracing, aio

# --- name_prefix ---


def test_prefix_is_part_of_each_name(sidecar: FakeSidecar, client: Client) -> None:
    with locksidecar.connect(sidecar.path, name_prefix="billing:") as billing:
        with billing.lock("42") as held, billing.rlock("43"):
            assert held.name == "billing:42"
            assert sidecar.holder("billing:42")
            assert sidecar.holder("billing:43")
            info = billing.info("42")
            assert info is not None
            assert info.name == "billing:42"
            assert client.info("42") is None
            assert {row.name for row in billing.list()} == {"billing:42", "billing:43"}
            with pytest.raises(LockTimeout), client.lock("billing:42", timeout=0):
                pass
        billing.lock("44").acquire()
        billing.force_release("44")
        with pytest.raises(NotHeld):
            billing.force_release("44")


async def test_prefix_of_tasks(sidecar: FakeSidecar) -> None:
    async with aio.connect(sidecar.path, name_prefix="p:") as client:
        async with client.lock("n"), client.rlock("r"):
            assert sidecar.holder("p:n")
            assert sidecar.holder("p:r")
            info = await client.info("n")
            assert info is not None
        lock = client.lock("f")
        await lock.acquire()
        await client.force_release("f")


def test_prefix_is_pickled(sidecar: FakeSidecar) -> None:
    with locksidecar.connect(sidecar.path, name_prefix="p:") as client:
        other = pickle.loads(pickle.dumps(client))
        lock = pickle.loads(pickle.dumps(client.lock("n")))
        assert (other.name_prefix, other.path, lock.name) == ("p:", client.path, "p:n")
        assert lock._client is other
        with lock:
            assert sidecar.holder("p:n")
        other.close()


def test_prefix_and_name_are_checked(sidecar: FakeSidecar) -> None:
    with pytest.raises(BadRequest, match="control characters"):
        Client(sidecar.path, name_prefix="a\n")
    with pytest.raises(TypeError, match="must be a str"):
        Client(sidecar.path, name_prefix=1)  # type: ignore[arg-type]
    client = Client(sidecar.path, name_prefix="p" * 500)
    with pytest.raises(BadRequest, match="at most 512 bytes"):
        client.lock("n" * 13)
    with pytest.raises(TypeError, match="must be a str"):
        client.lock(1)  # type: ignore[arg-type]


def _attributes_are_read_only(lock: locksidecar.Lock, held: locksidecar.Held, task: aio.Held) -> None:
    """mypy refuses each of these, and an ignore that is not needed."""
    held.token = 5  # type: ignore[misc]
    held.name = "n"  # type: ignore[misc]
    task.token = 5  # type: ignore[misc]
    lock.name = "n"  # type: ignore[misc]
    lock.token = 5  # type: ignore[misc]


# --- Decorators ---


def test_decorated_function_holds_the_lock(sidecar: FakeSidecar, client: Client) -> None:
    @client.synchronized(lambda number, **_: f"invoice:{number}", timeout=0)
    def charge(number: int, *, amount: int = 1) -> int:
        """Charges."""
        assert sidecar.holder(f"invoice:{number}")
        return amount

    assert charge(7, amount=3) == 3
    sidecar.wait_for(lambda: not sidecar.holder("invoice:7"))
    assert (charge.__name__, charge.__doc__) == ("charge", "Charges.")
    with client.lock("invoice:8"), pytest.raises(LockTimeout):
        charge(8)


def test_options_of_a_decorator_are_sent(sidecar: FakeSidecar, client: Client) -> None:
    options = {"timeout": 3, "lease": 4, "max_hold": 5, "crash_delay": 6, "keep": 7, "fair": True}
    client.synchronized("n", **options)(lambda: None)()  # type: ignore[arg-type]
    request = sidecar.requests("acquire")[-1]
    assert request["fair"] is True
    assert [request[f"{x}_ms"] for x in ("lease", "max_hold", "crash_delay", "keep")] == [4000, 5000, 6000, 7000]
    assert request["wait_ms"] <= 3000


def test_reentrant_function_may_call_itself(client: Client) -> None:
    @client.synchronized("n", reentrant=True)
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    assert factorial(4) == 24


async def test_decorated_coroutine_function_holds_the_lock(sidecar: FakeSidecar) -> None:
    async with aio.connect(sidecar.path) as client:

        @client.synchronized(lambda number: f"invoice:{number}", timeout=0)
        async def charge(number: int) -> int:
            assert sidecar.holder(f"invoice:{number}")
            await asyncio.sleep(0)
            return number

        assert await charge(7) == 7
        async with client.lock("invoice:8"):
            with pytest.raises(LockTimeout):
                await charge(8)

        @client.synchronized("r", reentrant=True)
        async def count(n: int) -> int:
            return 1 + await count(n - 1) if n else 0

        assert await count(3) == 3


def test_functions_that_return_before_their_body_ends_are_refused(client: Client) -> None:
    tasks = aio.Client(client.path)

    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(TypeError, match=r"locksidecar\.aio\.Client"):
        client.synchronized("n")(coroutine)
    for function in (generator, asynchronous_generator):
        with pytest.raises(TypeError, match="is a generator"):
            client.synchronized("n")(function)
        with pytest.raises(TypeError, match="is a generator"):
            tasks.synchronized("n")(function)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"locksidecar\.Client"):
        tasks.synchronized("n")(print)  # type: ignore[arg-type]


def test_arguments_of_a_decorator_are_checked_at_once(client: Client) -> None:
    with pytest.raises(BadRequest):
        client.synchronized("", timeout=1)
    with pytest.raises(BadRequest):
        client.synchronized(str, lease=-1)
    with pytest.raises(BadRequest):
        aio.Client(client.path).synchronized("n", max_hold=-1)


# --- Spans ---


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(_tracing, "tracer", provider.get_tracer("locksidecar"))
    return exporter


def test_acquire_makes_a_span(sidecar: FakeSidecar, client: Client, spans: InMemorySpanExporter) -> None:
    with client.lock("n", timeout=2) as held:
        assert not client.lock("n").acquire(blocking=False)
    sidecar.refuse["acquire"] = ("limit", "too many")
    with pytest.raises(locksidecar.LimitExceeded):
        client.lock("n").acquire()
    granted, timeout, refused = spans.get_finished_spans()
    assert (granted.name, granted.kind) == ("locksidecar acquire", trace.SpanKind.CLIENT)
    assert dict(granted.attributes or {}) == {
        "locksidecar.lock": "n",
        "locksidecar.timeout": 2.0,
        "locksidecar.result": "acquired",
        "locksidecar.token": held.token,
    }
    assert (timeout.attributes or {})["locksidecar.result"] == "timeout"
    assert timeout.status.is_unset
    assert (refused.attributes or {})["locksidecar.result"] == "LimitExceeded"
    assert refused.status.status_code is trace.StatusCode.ERROR
    assert refused.events[0].name == "exception"


def test_span_has_the_permits(client: Client, spans: InMemorySpanExporter) -> None:
    with client.semaphore("n", permits=3).acquire(2) as held:
        pass
    (span,) = spans.get_finished_spans()
    assert dict(span.attributes or {}) == {
        "locksidecar.lock": "n",
        "locksidecar.permits": 2,
        "locksidecar.result": "acquired",
        "locksidecar.token": held.token,
    }


async def test_acquire_of_a_task_makes_a_span(sidecar: FakeSidecar, spans: InMemorySpanExporter) -> None:
    async with aio.connect(sidecar.path) as client, client.lock("n") as held:
        task = asyncio.create_task(client.lock("n").acquire())
        await asyncio.to_thread(sidecar.wait_for, lambda: sidecar.waiting("n"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(LockTimeout):
            async with client.lock("n", timeout=0):
                pass
    results = [(s.attributes or {})["locksidecar.result"] for s in spans.get_finished_spans()]
    assert results == ["acquired", "CancelledError", "timeout"]
    assert (spans.get_finished_spans()[0].attributes or {})["locksidecar.token"] == held.token


def test_span_is_a_child_of_the_current_one(client: Client, spans: InMemorySpanExporter) -> None:
    tracer = _tracing.tracer
    assert tracer is not None
    with tracer.start_as_current_span("request") as request, client.lock("n"):
        pass
    acquire = spans.get_finished_spans()[0]
    assert acquire.parent is not None
    assert acquire.parent.span_id == request.get_span_context().span_id


def test_no_span_is_made_without_an_sdk(client: Client) -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert _tracing.tracer is not None
    assert _tracing.start("n", None) is None


def test_package_works_without_opentelemetry(sidecar: FakeSidecar) -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None  # type: ignore[assignment]
import locksidecar
from locksidecar import _tracing
assert _tracing.tracer is None
with locksidecar.connect(sys.argv[1]) as client, client.lock("n"):
    print("held")
"""
    out = subprocess.run([sys.executable, "-c", program, sidecar.path], check=True, capture_output=True, text=True)
    assert out.stdout == "held\n"

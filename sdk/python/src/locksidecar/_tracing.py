"""An OpenTelemetry span for each acquire, if the package opentelemetry-api is installed.

The span begins with the acquire and ends with its answer. Without a configured SDK there is none: spans of the API that
record nothing would cost a quarter of the time of a lock/unlock pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._errors import LockTimeout
from ._version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

tracer: Tracer | None
try:
    from opentelemetry import trace
except ImportError:
    tracer = None
else:
    tracer = trace.get_tracer("locksidecar", __version__)


def start(name: str, timeout: float | None, permits: int = 0) -> Span | None:
    """Begins the span of an acquire. The caller ends it with granted() or failed(); None: nothing is recorded.

    permits: 0: it is of a lock.
    """
    if tracer is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    span = tracer.start_span("locksidecar acquire", kind=trace.SpanKind.CLIENT)
    if not span.is_recording():
        return None
    span.set_attribute("locksidecar.lock", name)
    if permits:
        span.set_attribute("locksidecar.permits", permits)
    if timeout is not None:
        span.set_attribute("locksidecar.timeout", float(timeout))
    return span


def granted(span: Span, token: int) -> None:
    span.set_attribute("locksidecar.result", "acquired")
    span.set_attribute("locksidecar.token", token)
    span.end()


def failed(span: Span, error: BaseException) -> None:
    """The acquire raised error. A timeout is a result, and no error of the span."""
    if isinstance(error, LockTimeout):
        span.set_attribute("locksidecar.result", "timeout")
    else:
        span.set_attribute("locksidecar.result", type(error).__name__)
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
    span.end()

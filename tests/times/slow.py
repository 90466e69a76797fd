"""A plugin of pytest: writes the beginning and the end of each test to descriptor 3, as events of `go test -json`."""

from __future__ import annotations

import json
import os
import time

# Standard output is for what pytest prints.
_events = os.fdopen(3, "w")
_began: dict[str, float] = {}


def _write(action: str, test: str, elapsed: float) -> None:
    event = {"Action": action, "Package": "sdk/python", "Test": test.replace("/", "."), "Elapsed": elapsed}
    print(json.dumps(event), file=_events, flush=True)


def pytest_runtest_logstart(nodeid: str) -> None:
    _began[nodeid] = time.monotonic()
    _write("run", nodeid, 0)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _write("pass", nodeid, time.monotonic() - _began.pop(nodeid))

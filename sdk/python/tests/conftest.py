from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake import FakeSidecar, sockets_of_this_test

import locksidecar

# A shell that starts the tests in the background may ignore SIGINT, and a process inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[FakeSidecar]:
    fake = FakeSidecar(str(tmp_path / "sidecar.sock"))
    yield fake
    fake.stop()
    sockets_of_this_test.clear()


@pytest.fixture
def client(sidecar: FakeSidecar) -> Iterator[locksidecar.Client]:
    with locksidecar.connect(sidecar.path) as client:
        yield client

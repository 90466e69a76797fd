"""What other code sees of the public names: where they come from, their types, and times in the units of Python."""

from __future__ import annotations

import inspect
import pickle
import re
import time
import typing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fake import FakeSidecar

import locksidecar
from locksidecar import Client, _clock, aio, testing

MODULES = [locksidecar, aio, testing]
SPEC = Path(__file__).resolve().parents[3] / "protocol" / "SPEC.md"

CLASSES = [
    pytest.param(module, getattr(module, name), id=f"{module.__name__}.{name}")
    for module in MODULES
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
]


@pytest.mark.parametrize(("module", "public"), CLASSES)
def test_class_says_where_it_is_found(module: Any, public: type) -> None:
    assert public.__module__ == module.__name__
    assert pickle.loads(pickle.dumps(public)) is public


@pytest.mark.parametrize(("module", "public"), CLASSES)
def test_types_of_a_class_can_be_evaluated(module: Any, public: type) -> None:
    """As pydantic, cattrs and beartype do."""
    typing.get_type_hints(public)


def test_functions_say_where_they_are_found() -> None:
    assert locksidecar.connect.__module__ == "locksidecar"
    assert locksidecar.aconnect.__module__ == "locksidecar.aio"


def test_hook_of_a_fork_is_not_public() -> None:
    assert not [n for c in (Client, aio.Client) for n in dir(c) if "fork" in n and not n.startswith("_")]


@pytest.mark.skipif(not SPEC.exists(), reason="an sdist does not have SPEC.md")
def test_literals_are_those_of_the_specification() -> None:
    spec = SPEC.read_text()

    def first_column(section: str, head: str) -> set[str]:
        table = spec[spec.index(section) :]
        table = table[table.index(head) :]
        return set(re.findall(r"^\| `(\w+)` \|", table[: table.index("\n\n")], re.MULTILINE))

    state = next(line for line in spec.splitlines() if line.startswith("| `state` | str |"))
    assert set(typing.get_args(locksidecar.LockState)) == set(re.findall(r"`(\w+)` \(", state))
    kind = next(line for line in spec.splitlines() if line.startswith("| `kind` | str? |"))
    assert set(typing.get_args(locksidecar.LockKind)) == {"lock", *re.findall(r"`(\w+)`: ", kind)}
    key = next(line for line in spec.splitlines() if line.startswith("- `key` (str?)"))
    assert set(typing.get_args(locksidecar.KeyKind)) == {"", *re.findall(r"`(\w+)` \(", key.partition(":")[2])}
    assert set(typing.get_args(locksidecar.EventKind)) == first_column("### 4.13", "| kind |")
    sent = first_column("### 5.1", "| reason |")
    assert set(typing.get_args(locksidecar.LossReason)) == sent | {"closed", "cut_short"}


# --- Times ---


def is_near(time: datetime | None, expected: datetime) -> bool:
    assert time is not None
    assert time.tzinfo is timezone.utc
    return abs(time - expected) < timedelta(hours=1)


def test_time_of_the_clock_of_deadlines_is_a_time_of_the_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "boottime", lambda: 5_000_000_000)
    before = datetime.now(timezone.utc)
    shown = _clock.wall_time(7_500_000_000)
    after = datetime.now(timezone.utc)
    assert before <= shown - timedelta(seconds=2.5) <= after


def test_times_of_answers_are_also_datetimes_and_seconds(sidecar: FakeSidecar, client: Client) -> None:
    now = datetime.now(timezone.utc)
    with client.lock("n", lease=20, keep=10) as held:
        row = client.info("n")
        assert row is not None
        assert is_near(held.deadline_at, now)
        assert is_near(row.deadline_at, now)
        assert row.lease_seconds == 20.0
        assert row.held_seconds == row.held_ms / 1000
        assert 9 < row.keep_left_seconds <= 10


def test_times_are_converted() -> None:
    assert locksidecar.LockInfo("n", "free").deadline_at is None
    assert locksidecar.LockInfo("n", "remote", remote_ttl_ms=1500).remote_ttl_seconds == 1.5
    assert locksidecar.LockInfo("n", "remote", remote_ttl_ms=-1).remote_ttl_seconds is None
    absent = locksidecar.LockInfo("n", "held", absent_ms=250, absent_left_ms=500)
    assert (absent.absent_seconds, absent.absent_left_seconds) == (0.25, 0.5)
    assert locksidecar.WaiterInfo(waited_ms=250).waited_seconds == 0.25
    assert locksidecar.HolderInfo(held_ms=250).held_seconds == 0.25
    assert locksidecar.LockOwner("f", waited_ms=250).waited_seconds == 0.25
    assert locksidecar.Oldest("n", age_ms=250).age_seconds == 0.25
    assert locksidecar.Ownership("ok", ttl_ms=-1).ttl_seconds is None
    assert locksidecar.OrphanedLock("s", 1, ttl_ms=250).ttl_seconds == 0.25
    assert locksidecar.ShardStatus("a:1", 1, "ok", roundtrip_ns=250_000).roundtrip_seconds == 0.000_25
    started = locksidecar.HostInfo("s", "h", started_ms=1_500).started_at
    assert started == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=timezone.utc)
    assert locksidecar.HostInfo("s", "h").started_at is None
    now = datetime.now(timezone.utc)
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    event = locksidecar.Event(at, "lost", held_ms=250, waited_ms=500)
    assert is_near(event.at, now)
    assert (event.held_seconds, event.waited_seconds) == (0.25, 0.5)
    status = locksidecar.Status(at, at, "0", "ok", 0, 0, 0, roundtrip_ns=250_000)
    assert is_near(status.at, now)
    assert is_near(status.started_at, now)
    assert status.roundtrip_seconds == 0.000_25

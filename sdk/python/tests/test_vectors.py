"""The test vectors of all implementations: protocol/testdata/vectors.json, see SPEC.md §10."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest
from points import times

from locksidecar import ProtocolError
from locksidecar import _protocol as protocol
from locksidecar._strict import Fields

Vector = dict[str, Any]

# In the repository, or in an sdist.
FILE = Path(__file__).resolve().parents[3] / "protocol" / "testdata" / "vectors.json"
if not FILE.exists():
    FILE = Path(__file__).with_name("vectors.json")

VECTORS: list[Vector] = json.loads(FILE.read_text())


@dataclass
class _NoFields:
    """An answer without fields."""


PARSERS: dict[str, Callable[[Fields], Any]] = {
    "hello": protocol.hello_ok,
    "acquire": protocol.acquire_ok,
    "acquire_rw": protocol.rw_ok,
    "acquire_permits": protocol.permits_ok,
    "downgrade": protocol.downgrade_ok,
    "info": protocol.info_ok,
    "list": protocol.list_ok,
    "events": protocol.events_ok,
    "status": protocol.status_ok,
    "force_release": protocol.force_release_ok,
    "metrics": protocol.metrics_ok,
    "hosts": protocol.hosts_ok,
    "host_info": protocol.info_ok,
    "host_list": protocol.list_ok,
    "host_status": protocol.status_ok,
    "host_force_release": protocol.force_release_ok,
    "force_release_orphaned": protocol.force_release_orphaned_ok,
    "who": protocol.who_ok,
    "ping": protocol.ping_ok,
    "claim": lambda _: _NoFields(),
    "confirm": lambda _: _NoFields(),
    "bye": lambda _: _NoFields(),
}


def named(vector: Vector) -> str:
    return str(vector["name"])


def whole(vector: Vector) -> bytes:
    return bytes.fromhex(vector["hex"]) + bytes(vector.get("pad", 0))


# This client sends release and cancel without an id, so they are not answered.
OURS = [v for v in VECTORS if v.get("answers") not in ("release", "cancel")]
REPLIES = [v for v in OURS if v["kind"] == "reply"]
BAD = [v for v in OURS if v["kind"] == "bad" and v["to"] == "client"]
# A bad length is the same in both directions.
BAD_LENGTHS = [v for v in VECTORS if v["kind"] == "bad" and int(v["hex"][:8], 16) not in range(1, 65537)]
REQUESTS = [v for v in VECTORS if v["kind"] == "request" and v.get("canonical")]


def read(data: bytes, answers: str | None) -> Any:
    """Reads one frame, and parses the answer in it."""
    found = protocol.split(data, 0)
    assert found is not None
    reply = protocol.decode(found[0])
    if isinstance(reply, protocol.Answer) and answers is not None:
        return reply.id, PARSERS[answers](reply.fields)
    return reply


def lock(row: Vector) -> protocol.LockInfo:
    waiters = tuple(protocol.WaiterInfo(**w) for w in row.get("waiters", ()))
    return protocol.LockInfo(**{**row, "waiters": waiters, "holders": holders(row)})


def holders(row: Vector) -> tuple[protocol.HolderInfo, ...]:
    return tuple(protocol.HolderInfo(**h) for h in row.get("holders", ()))


def expected(vector: Vector) -> Any:
    message: dict[str, Any] = dict(vector["message"])
    match vector.get("answers"):
        case "hosts":
            rows = tuple(protocol.HostInfo(**row) for row in message["hosts"])
            return message["id"], protocol.HostsOK(rows, message.get("more", False))
        case "info" | "host_info":
            return message["id"], protocol.InfoOK(lock(message["lock"]) if "lock" in message else None)
        case "list" | "host_list":
            return message["id"], protocol.ListOK(tuple(map(lock, message["locks"])), message.get("next", 0))
        case "force_release_orphaned":
            return message.pop("id"), protocol.OrphanedLock(**message)
        case "who":
            for key in ("lock", "holder"):
                if key in message:
                    message[key] = lock(message[key])
            for key in ("owners", "queue"):
                if key in message:
                    message[key] = tuple(protocol.LockOwner(**{**row, "holders": holders(row)}) for row in message[key])
            return message.pop("id"), protocol.Ownership(**message)
        case "events":
            events = tuple(protocol.Event(**e) for e in message["events"])
            return message["id"], protocol.EventPage(
                events, message["next"], message.get("missed", 0), message.get("hidden", "")
            )
        case "status" | "host_status":
            id = message.pop("id")
            for key, kind in (
                ("oldest_waiter", protocol.Oldest),
                ("oldest_hold", protocol.Oldest),
                ("restart", protocol.Restart),
            ):
                if key in message:
                    message[key] = kind(**message[key])
            if "shards" in message:
                message["shards"] = tuple(protocol.ShardStatus(**{"address": "", **row}) for row in message["shards"])
            message["lost"] = {row["reason"]: row["count"] for row in message.get("lost", ())}
            return id, protocol.Status(**message)
    match message:
        case {"ev": "lost", "hold": hold, "reason": reason}:
            return protocol.LostEvent(hold, reason)
        case {"ev": "lease", "deadline_ns": deadline}:
            return protocol.LeaseEvent(deadline)
        case {"ev": ev}:
            return protocol.UnknownEvent(ev)
        case {"err": error}:
            return protocol.Refusal(message.get("id", 0), error["code"], error["msg"])
    return message.pop("id"), message


def normalized(got: Any) -> Any:
    match got:
        case (
            id,
            (
                protocol.InfoOK()
                | protocol.ListOK()
                | protocol.HostsOK()
                | protocol.EventPage()
                | protocol.Status()
                | protocol.Ownership()
                | protocol.OrphanedLock()
            ) as answer,
        ):
            return id, answer
        case (
            id,
            (
                protocol.AcquireOK()
                | protocol.ForceReleaseOK()
                | protocol.HelloOK()
                | protocol.MetricsOK()
                | protocol.PingOK()
            ) as answer,
        ):
            may_be_absent = {
                "end_ns": 0,
                "permits": 0,
                "of": 0,
                "shared": False,
                "next": 0,
                "ticket": "",
                "resumed": False,
                "msg": "",
                "redis_address": "",
                "redis_run_id": "",
                "key_prefix": "",
                "degraded": False,
                "trouble": "",
                "redis_risk": "",
            }
            if isinstance(answer, protocol.ForceReleaseOK):
                may_be_absent["count"] = 0
            return id, {k: v for k, v in asdict(answer).items() if may_be_absent.get(k) != v}
        case (id, answer):
            return id, asdict(answer)
    return got


def test_there_are_vectors() -> None:
    assert len(REPLIES) > 30
    assert len(BAD) > 30
    assert len(REQUESTS) > 30
    assert BAD_LENGTHS


@pytest.mark.parametrize("vector", REPLIES, ids=named)
def test_reply_is_read(vector: Vector) -> None:
    assert normalized(read(whole(vector), vector.get("answers"))) == expected(vector)


@pytest.mark.parametrize("vector", REPLIES, ids=named)
def test_reply_is_read_byte_by_byte(vector: Vector) -> None:
    data = whole(vector)
    for size in range(len(data)):
        assert protocol.split(data[:size], 0) is None
    assert protocol.split(data, 0) == (data[4:], len(data))


@pytest.mark.parametrize("vector", REPLIES, ids=named)
def test_frame_ends_where_the_next_one_begins(vector: Vector) -> None:
    data = whole(vector)
    size = len(data)
    received = data * 2 + b"\x00"
    assert protocol.split(received, 0) == (data[4:], size)
    assert protocol.split(received, size) == (data[4:], 2 * size)
    assert protocol.split(received, 2 * size) is None


@pytest.mark.parametrize("vector", REPLIES, ids=named)
def test_bytes_after_the_map_are_refused(vector: Vector) -> None:
    with pytest.raises(ProtocolError):
        protocol.decode(whole(vector)[4:] + b"\xc0")


@pytest.mark.parametrize("vector", REPLIES, ids=named)
def test_truncated_body_is_refused(vector: Vector) -> None:
    body = whole(vector)[4:]
    for n in range(min(len(body), 700)):
        with pytest.raises(ProtocolError):
            protocol.decode(body[:n])


def levels(value: object) -> int:
    """How deep arrays and maps nest."""
    values: list[object] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + max(map(levels, values), default=0) if isinstance(value, dict | list) else 0


def test_senders_nest_as_deep_as_the_specification_says() -> None:
    sent = [v for v in VECTORS if v["kind"] in ("request", "reply") and v.get("canonical")]
    assert max(levels(value) for v in sent for value in v["message"].values()) == 4


@pytest.mark.parametrize("vector", BAD, ids=named)
def test_bad_frame_is_refused(vector: Vector) -> None:
    with pytest.raises(ProtocolError):
        read(whole(vector), vector.get("answers"))


@pytest.mark.parametrize("vector", BAD_LENGTHS, ids=named)
def test_bad_length_is_refused_at_once(vector: Vector) -> None:
    with pytest.raises(ProtocolError, match="allowed"):
        protocol.split(whole(vector)[:4], 0)


# --- The fast path for grants ---


def read_strictly(
    body: bytes, parse: Callable[[Fields], protocol.AcquireOK] = protocol.acquire_ok
) -> tuple[int, protocol.AcquireOK] | None:
    """The result of the strict reader for body as the answer to an acquire; None if it refuses it."""
    try:
        reply = protocol.decode(body)
        return (reply.id, parse(reply.fields)) if isinstance(reply, protocol.Answer) else None
    except ProtocolError:
        return None


def read_fast(body: bytes) -> bool:
    """Whether the fast path accepts body. Checks that the strict reader agrees."""
    grant = protocol.grant(body)
    if grant is not None:
        id, parse, answer = grant
        assert (id, answer) == read_strictly(body, parse), body.hex()
    return grant is not None


def uints(value: int) -> list[bytes]:
    """The unsigned formats that can hold value, the shortest first."""
    formats = [bytes([value])] if value < 0x80 else []
    return formats + [bytes([0xCC + i]) + value.to_bytes(1 << i, "big") for i in range(4) if value < 1 << (8 << i)]


@pytest.mark.parametrize("vector", [*REPLIES, *BAD], ids=named)
def test_fast_path_agrees_with_the_strict_reader(vector: Vector) -> None:
    read_fast(whole(vector)[4:])


LOCK_FIELDS = ("id", "token", "hold", "count", "deadline_ns")
PERMITS_FIELDS = (*LOCK_FIELDS, "permits", "of")
GRANTS = [pytest.param(LOCK_FIELDS, id="lock"), pytest.param(PERMITS_FIELDS, id="permits")]


@pytest.mark.parametrize("op", ["acquire", "acquire_permits"])
def test_fast_path_accepts_usual_grants(op: str) -> None:
    usual = [v for v in REPLIES if v.get("answers") == op and v.get("canonical")]
    assert any(read_fast(whole(v)[4:]) for v in usual)
    assert all(read_fast(whole(v)[4:]) for v in usual if "end_ns" not in v["message"])


def test_fast_path_names_the_kind_of_a_grant() -> None:
    for op, parse in (("acquire", protocol.acquire_ok), ("acquire_permits", protocol.permits_ok)):
        (vector, *_) = [v for v in REPLIES if v.get("answers") == op and v.get("canonical")]
        grant = protocol.grant(whole(vector)[4:])
        assert grant is not None
        assert grant[1] is parse


@pytest.mark.parametrize(
    ("all_fields", "field"), [(LOCK_FIELDS, f) for f in LOCK_FIELDS] + [(PERMITS_FIELDS, f) for f in PERMITS_FIELDS]
)
def test_fast_path_has_the_limits_of_the_strict_reader(all_fields: tuple[str, ...], field: str) -> None:
    """Each field with the limits of every format and of its range, in every format that can hold them."""
    parse = protocol.permits_ok if "of" in all_fields else protocol.acquire_ok
    powers = [1 << bits for bits in (0, 7, 8, 16, 32, 63)]
    for value in sorted({0, (1 << 64) - 1, *powers, *(p - 1 for p in powers)}):
        for written in uints(value):
            fields = dict.fromkeys(all_fields, b"\x01") | {field: written}
            head = bytes([0x80 + len(all_fields)])
            body = head + b"".join(bytes([0xA0 + len(k)]) + k.encode() + v for k, v in fields.items())
            fast = read_fast(body)
            assert fast == (read_strictly(body, parse) is not None) or written != uints(value)[0]


@pytest.mark.parametrize("all_fields", GRANTS)
def test_fast_path_agrees_on_mutated_grants(all_fields: tuple[str, ...]) -> None:
    rng = random.Random(7)
    keys = [bytes([0xA0 + len(k)]) + k.encode() for k in all_fields]
    # How many bits, and how many formats: of the last two, the wider ones are not usual.
    shapes = [((1, 7, 8, 16, 31, 32, 62, 64), 5)] * 5 + [((1, 7, 8, 16, 17), 2)] * 2
    read = 0
    for _ in range(times(30_000, 10_000)):
        values = [rng.choice(uints(rng.getrandbits(rng.choice(bits)))[:formats]) for bits, formats in shapes]
        fields = [k + v for k, v in zip(keys, values, strict=False)]
        match rng.randrange(8):
            case 0:
                rng.shuffle(fields)
            case 1:
                fields[rng.randrange(len(fields))] = fields[rng.randrange(len(fields))]  # a key twice
            case 2:
                more = rng.choice((b"\xa6end_ns\x05", b"\xa1x\xc0", b"\xa2ev\xa4lost", b"\xa2of\x05"))
                fields.insert(rng.randrange(len(fields) + 1), more)
        body = bytearray(bytes([0x80 + rng.choice((len(fields), len(keys)))]) + b"".join(fields))
        for _ in range(rng.choice((0, 0, 1, 2))):
            body[rng.randrange(len(body))] = rng.randrange(256)
        if rng.random() < 0.1:
            body += rng.randbytes(1)
        read += read_fast(bytes(body))
    assert read > 500


@pytest.mark.parametrize("hold", [0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1])
def test_release_is_encoded_canonically(hold: int) -> None:
    assert protocol.release(hold) == protocol.frame({"op": "release", "hold": hold})


@pytest.mark.parametrize("vector", REQUESTS, ids=named)
def test_request_is_encoded_canonically(vector: Vector) -> None:
    assert protocol.frame(vector["message"]) == whole(vector)
    message: Any = vector["message"]
    match message:
        case {"op": "hello", "id": id, "v": 1, "client": client}:
            rest = {k: message[k] for k in ("resumable", "resume") if k in message}
            assert protocol.hello(id, client, **rest) == whole(vector)
        case {"op": "claim", "id": id, "holds": holds}:
            assert protocol.claim(id, holds, more=message.get("more", False)) == whole(vector)
        case {"op": "bye", "id": id}:
            assert protocol.bye(id) == whole(vector)
        case {"op": "downgrade", "id": id, "hold": hold}:
            assert protocol.downgrade(id, hold) == whole(vector)
        case {"op": "acquire" | "acquire_rw" | "acquire_permits" as op, "id": id, "name": name}:
            own = ("op", "id", "name", "owner", "wait_ms", "permits", "of", "shared")
            mode: protocol.Mode = "shared" if message.get("shared") else "exclusive" if op == "acquire_rw" else ""
            options = protocol.acquire_options(mode=mode, **{k: v for k, v in message.items() if k not in own})
            owner, wait, of = message.get("owner", 0), message.get("wait_ms"), message.get("of", 0)
            permits = message.get("permits", 1) if of else 0
            assert protocol.acquire(id, protocol.check_name(name), owner, options, wait, permits, of) == whole(vector)
        case {"op": "release", "hold": hold} if "id" not in message:
            assert protocol.release(hold) == whole(vector)
        case {"op": "cancel", "target": target} if "id" not in message:
            assert protocol.cancel(target) == whole(vector)
        case {"op": "confirm", "id": id, "name": name}:
            assert protocol.confirm(id, name) == whole(vector)
        case {"op": "info", "id": id, "name": name}:
            assert protocol.info(id, name) == whole(vector)
        case {"op": "list", "id": id}:
            assert protocol.list_(id, message.get("after", 0)) == whole(vector)
        case {"op": "events", "id": id}:
            assert protocol.events(id, message.get("after", 0), message.get("wait", False)) == whole(vector)
        case {"op": "status", "id": id}:
            assert protocol.status(id) == whole(vector)
        case {"op": "force_release", "id": id, "name": name}:
            assert protocol.force_release(id, name, message.get("hold", 0)) == whole(vector)
        case {"op": "metrics", "id": id}:
            assert protocol.metrics(id, message.get("after", 0)) == whole(vector)
        case {"op": "hosts", "id": id}:
            assert protocol.hosts(id, message.get("after_host", "")) == whole(vector)
        case {"op": "host_info", "id": id, "host": host, "name": name}:
            assert protocol.host_info(id, host, name) == whole(vector)
        case {"op": "host_list", "id": id, "host": host}:
            assert protocol.host_list(id, host, message.get("after", 0)) == whole(vector)
        case {"op": "host_status", "id": id, "host": host}:
            assert protocol.host_status(id, host) == whole(vector)
        case {"op": "host_force_release", "id": id, "host": host, "name": name}:
            assert protocol.host_force_release(id, host, name, message.get("hold", 0)) == whole(vector)
        case {"op": "force_release_orphaned", "id": id, "name": name}:
            assert protocol.force_release_orphaned(id, name, message.get("sidecar")) == whole(vector)
        case {"op": "who", "id": id, "name": name}:
            assert protocol.who(id, name) == whole(vector)
        case {"op": "ping", "id": id}:
            assert protocol.ping(id) == whole(vector)


def check_all_vectors() -> None:
    """What the tests of the vectors check, without what pytest costs for each of them."""
    assert "cmsgpack" not in msgpack.Unpacker.__module__
    for vector in REPLIES:
        test_reply_is_read(vector)
        test_bytes_after_the_map_are_refused(vector)
        test_truncated_body_is_refused(vector)
    for vector in BAD:
        test_bad_frame_is_refused(vector)
    for vector in [*REPLIES, *BAD]:
        test_fast_path_agrees_with_the_strict_reader(vector)
    for vector in REQUESTS:
        test_request_is_encoded_canonically(vector)


def test_msgpack_without_its_extension_agrees() -> None:
    subprocess.run(
        [sys.executable, "-c", "import test_vectors; test_vectors.check_all_vectors()"],
        env={**os.environ, "MSGPACK_PUREPYTHON": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
        check=True,
    )

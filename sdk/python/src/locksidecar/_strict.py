"""A strict reader of msgpack maps.

The C unpacker of msgpack reads the scalars only. Maps and arrays are walked here, and unknown fields are skipped. So a
length in a hostile frame allocates nothing, recursion is bounded, and no value changes its type.
"""

from __future__ import annotations

from typing import Final

import msgpack

from ._errors import ProtocolError

MAX_DEPTH: Final = 8  # of nested arrays and maps in an unknown field
MAX_INT: Final = (1 << 63) - 1

# The deepest known field is the waiters of a row of list, with an unknown field in a waiter.
_KNOWN_DEPTH: Final = MAX_DEPTH + 4


class _Packed(bytes):
    """The bytes of a container, or of a value of a type that no field has, as they are in the frame."""


class Fields:
    """The known fields of one map; the others are ignored.

    The getters raise ProtocolError if the field is missing and has no default, or has another type or range.
    """

    __slots__ = ("_known", "_values")

    def __init__(self, body: bytes, known: frozenset[str]) -> None:
        """Reads a body that is exactly one map."""
        self._known = known
        try:
            self._values = _map(body, known)
        # OutOfData is no ValueError; FormatError, StackError and UnicodeDecodeError are.
        except (ValueError, msgpack.OutOfData) as e:
            raise ProtocolError(f"it sent a bad frame: {e or type(e).__name__}") from e

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = MAX_INT) -> int:
        value = self._values.get(name, default)
        if type(value) is not int:
            raise self._wrong(name, "an integer")
        if not least <= value <= most:
            raise ProtocolError(f"it sent a frame whose {name} is {value}; {least} to {most} is allowed")
        return value

    def text(self, name: str, default: str | None = None, *, most: int | None = None) -> str:
        """most: how many bytes of UTF-8 are allowed."""
        value = self._values.get(name, default)
        if type(value) is not str:
            raise self._wrong(name, "a string")
        if most is not None and len(value.encode()) > most:
            raise ProtocolError(f"it sent a frame whose {name} has more than {most} bytes")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._values.get(name, default)
        if type(value) is not bool:
            raise self._wrong(name, "true or false")
        return value

    def map(self, name: str) -> Fields:
        value = self._values.get(name)
        if type(value) is not _Packed:
            raise self._wrong(name, "a map")
        return Fields(value, self._known)

    def maps(self, name: str) -> list[Fields]:
        value = self._values.get(name)
        if type(value) is not _Packed:
            raise self._wrong(name, "an array")
        try:
            return [Fields(row, self._known) for row in _array(value)]
        except (ValueError, msgpack.OutOfData):
            raise self._wrong(name, "an array of maps") from None

    def _wrong(self, name: str, kind: str) -> ProtocolError:
        what = f"whose {name} is not {kind}" if name in self._values else f"without {name}"
        return ProtocolError(f"it sent a frame {what}")


def _unpacker(body: bytes) -> msgpack.Unpacker:
    unpacker = msgpack.Unpacker(
        raw=False,
        strict_map_key=True,
        max_buffer_size=max(len(body), 1),
        max_str_len=len(body),
        max_bin_len=0,
        max_ext_len=0,
        max_array_len=0,
        max_map_len=0,
    )
    unpacker.feed(body)
    return unpacker


def _map(body: bytes, known: frozenset[str]) -> dict[str, object]:
    unpacker = _unpacker(body)
    values: dict[str, object] = {}
    ignored: set[str] = set()
    entries, begin = _header(body, 0x80, _MAP)
    unpacker.read_bytes(begin)
    for _ in range(entries):
        start = unpacker.tell()
        key = unpacker.unpack()
        if type(key) is not str or body[start] == _STR32:
            raise ValueError("a key is not a string of the formats fixstr, str8 and str16")
        if key in values or key in ignored:
            raise ValueError(f"the key {key!r} occurs twice in a map")
        at = unpacker.tell()
        if key not in known:
            unpacker.read_bytes(_end(body, at, MAX_DEPTH) - at)
            ignored.add(key)
        elif at < len(body) and body[at] in _SCALARS:
            values[key] = unpacker.unpack()
        else:
            values[key] = _Packed(unpacker.read_bytes(_end(body, at, _KNOWN_DEPTH) - at))
    if unpacker.tell() != len(body):
        raise ValueError("there are bytes after its map")
    return values


def _array(body: bytes) -> list[bytes]:
    unpacker = _unpacker(body)
    values: list[bytes] = []
    items, begin = _header(body, 0x90, _ARRAY)
    unpacker.read_bytes(begin)
    for _ in range(items):
        at = unpacker.tell()
        values.append(unpacker.read_bytes(_end(body, at, _KNOWN_DEPTH) - at))
    return values


_STR32: Final = 0xDB
_SCALARS: Final = frozenset(
    (*range(0x80), *range(0xA0, 0xC1), 0xC2, 0xC3, *range(0xCA, 0xD4), 0xD9, 0xDA, 0xDB, *range(0xE0, 0x100))
)
# What follows the first byte of a value: this many bytes, …
_FIXED: Final = {
    **dict.fromkeys((*range(0x80), 0xC0, 0xC2, 0xC3, *range(0xE0, 0x100)), 0),
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},
    **{0xA0 + n: n for n in range(32)},
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},  # extensions, with their type
}
# … or a length of this many bytes, and as many bytes as it says, …
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSION: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}  # plus one byte, the type
# … or a length of this many bytes, and as many values as it says.
_ARRAY: Final = {0xDC: 2, 0xDD: 4}
_MAP: Final = {0xDE: 2, 0xDF: 4}


def _header(body: bytes, short: int, long: dict[int, int]) -> tuple[int, int]:
    """How many entries a container of this format has, and where they begin.

    msgpack's own reader is not used: without the C extension it applies the limits of the unpacker, which are 0.
    """
    if not body:
        raise msgpack.OutOfData
    first = body[0]
    if first & 0xF0 == short:
        return first & 0x0F, 1
    if (width := long.get(first)) is None:
        raise ValueError(f"{first:#x} is not the first byte of the expected container")
    return _length(body, 1, width), 1 + width


def _end(body: bytes, at: int, depth: int) -> int:
    """Returns where the value that begins at `at` ends."""
    if at >= len(body):
        raise msgpack.OutOfData
    first = body[at]
    at += 1
    if (size := _FIXED.get(first)) is not None:
        return _within(body, at + size)
    if (width := _SIZED.get(first)) is not None:
        return _within(body, at + width + _length(body, at, width))
    if (width := _EXTENSION.get(first)) is not None:
        return _within(body, at + width + 1 + _length(body, at, width))
    if 0x80 <= first <= 0x8F:
        values = 2 * (first & 0x0F)
    elif 0x90 <= first <= 0x9F:
        values = first & 0x0F
    elif (width := _ARRAY.get(first)) is not None:
        values = _length(body, at, width)
        at += width
    elif (width := _MAP.get(first)) is not None:
        values = 2 * _length(body, at, width)
        at += width
    else:
        raise ValueError(f"{first:#x} is no msgpack format")
    if depth == 0:
        raise ValueError(f"an unknown field nests deeper than {MAX_DEPTH}")
    for _ in range(values):
        at = _end(body, at, depth - 1)
    return at


def _length(body: bytes, at: int, width: int) -> int:
    return int.from_bytes(body[at : _within(body, at + width)], "big")


def _within(body: bytes, end: int) -> int:
    if end > len(body):
        raise msgpack.OutOfData
    return end

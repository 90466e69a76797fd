"""What a client knows, without I/O and without a clock: bytes in, bytes out, time as an argument.

One Session stands for one session, which outlives its connection. Sync and asyncio clients differ only in
how they connect, move its bytes and wake its callers. Times are nanoseconds of CLOCK_BOOTTIME, the clock of
every deadline.

A Session is not thread-safe: its edge, which moves the bytes, guards it.

A signal handler may raise an exception in every method here, because CPython runs handlers after calls. So each
change is prepared first, and committed then: the statements after the comment "Commit:" make no call and do not
branch, so that CPython runs no handler between them. A method that is interrupted before its commit has done
nothing, or nothing that the next run does not repeat. A received frame counts as read by the commit of what it says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Final

from . import _protocol as protocol
from ._calls import NO_EPOCH, AwaitedAnswer, Call, CallState, Confirm, Hold, bye_call
from ._errors import (
    BadRequest,
    ClientClosed,
    Deadlock,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    LockTimeout,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from ._strict import Fields
from ._version import __version__

# A sidecar that does not read must not let requests pile up here without bound.
MAX_UNSENT: Final = 1 << 20

if sys.platform == "linux":
    boottime: Final[Callable[[], int]] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
else:
    boottime: Final[Callable[[], int]] = time.monotonic_ns  # for no deadline: connecting raises Unsupported


class Stage(IntEnum):
    """How far a session has come on the connection that it has now.

    ::

                  begin()           hello answered         last claim answered
        ADRIFT ───────────► GREETING ────────────► CLAIMING ───────────► SERVING
           ▲                   │      not resumed: nothing to claim         ▲ │
           │                   └────────────────────────────────────────────┘ │
           └───────────── end(), from each of them ◄──────────────────────────┘

    OVER comes after fail(), or when the sidecar has answered bye, and is final.
    """

    ENDED = 0
    DISCONNECTED = 1
    GREETING = 2
    CLAIMING = 3
    SERVING = 4


@dataclass(slots=True, eq=False)
class Session:
    """Requests, answers and holds of one session, over one connection after another.

    While there is no connection calls wait and holds are good to their deadlines. When there is one again
    the session is resumed: what is still held is claimed, then what waits is asked again, in its order.

    An owner whose acquire was abandoned sends no other acquire until the answer to the abandoned one was received
    and, if it was granted, its release is queued. Otherwise the sidecar might find that this owner still holds the
    lock, and answer deadlock, or enter the abandoned hold again.
    """

    path: str
    stage: Stage = Stage.DISCONNECTED
    # What happened since the edge last looked; it takes the contents and wakes the callers that wait for them.
    done_calls: list[Call[Any]] = field(default_factory=list)
    lost_holds: list[Hold] = field(default_factory=list)
    # What was received and is not processed yet, in the pieces in which it came.
    received: list[bytes] = field(default_factory=list)
    # What has been sent is deleted from it.
    unsent: bytearray = field(default_factory=bytearray)
    # Abandoned acquires whose answer has not been received, by owner; an anonymous one by its negative id.
    unanswered_cancels: dict[int, Call[Any]] = field(default_factory=dict)
    # Why no more can be asked. Holds outlive it, to their deadlines.
    failure: LocksidecarError | None = None
    # The process was forked: everything here is the parent's.
    inherited: bool = False
    live_holds: int = 0  # holds neither released nor lost
    # Until when the sidecar, or Redis, may keep for this session what it has given up without having read that.
    # 0: there is no such thing.
    unreleased_until: int = 0

    _buffer: bytes = b""
    _processed: int = 0  # how many bytes of it are processed
    _frame_end: int = 0  # of the frame that is being processed, or was the last
    _queued_bytes: int = 0
    _last_id: int = 0
    _pending: dict[int, Call[Any]] = field(default_factory=dict)
    _to_undo: list[Call[Any]] = field(default_factory=list)  # abandoned acquires to be settled: they are answered
    _deferred: dict[int, list[Call[Any]]] = field(default_factory=dict)  # until their owner is settled
    _holds: dict[int, Hold] = field(default_factory=dict)  # by their numbers in this era
    _lease_events: int = 0  # lease events seen
    _lease_deadline: int = 0  # deadline of the newest
    _last_release_end: int = 0  # end of the last release among all bytes ever queued
    _acknowledged: int = 0  # how many of them the sidecar has read for certain

    # Of greetings:
    _ticket: str = ""
    _sidecar_uuid: str = ""  # uuid of the sidecar that answered the newest hello
    _watchdog_lease_ns: int = 0  # of the watchdog
    _hello_sent_at: int = 0
    # What to do with the answers to hello, claim and bye, by id; with the time.
    _answer_handlers: dict[int, Callable[[Fields, int], None]] = field(default_factory=dict)
    # Counts greetings, for those holds that they left with the sidecar.
    _epoch: int = 1
    _releases_after_claims: bytearray = field(default_factory=bytearray)  # releases of what is being claimed
    _needs_reset: bool = False  # the last connection has left something to be sorted
    _bye: Call[bool] | None = None

    # --- Connections ---

    def on_connected(self, now: int) -> None:
        """There is a new connection: says hello on it."""
        self._reset(now)
        id = self._last_id + 1
        hello = protocol.hello(id, f"python/{__version__}", resumable=True, resume=self._ticket)
        self._hello_sent_at = now
        self._last_id = id
        self._discard_received()
        self._enter_stage(Stage.GREETING, hello, {id: self._on_hello})

    def _enter_stage(
        self, stage: Stage, frames: bytes | bytearray, steps: dict[int, Callable[[Fields, int], None]]
    ) -> None:
        queued = self._queued_bytes + len(frames)
        # Commit:
        self.stage = stage
        self._answer_handlers = steps
        self._queued_bytes = queued
        self.unsent += frames
        self._processed = self._frame_end

    def _discard_received(self) -> None:
        self.received = []
        self._buffer = b""
        self._processed = 0
        self._frame_end = 0

    def on_disconnected(self, now: int) -> None:
        """The connection ended without our doing."""
        if self.stage > Stage.DISCONNECTED:
            if self._last_release_end > self._acknowledged:  # perhaps unread by a sidecar that is no more
                self._note_unreleased(now + 2 * self._watchdog_lease_ns)
            # Commit:
            self._needs_reset = True
            self.stage = Stage.DISCONNECTED
            self._reset(now)

    def _reset(self, now: int) -> None:
        """Keeps of what was under way what can be asked again. If it is interrupted, begin() calls it again."""
        if not self._needs_reset:
            return
        first_unsent = self._queued_bytes - len(self.unsent)
        for call in list(self._pending.values()):
            if call.state is CallState.QUEUED:
                call.sent_before = call.sent_before or call.end_offset <= first_unsent
                call.state = CallState.WAITING
            if call.abandoned:
                self._drop_abandoned(call, now)
            elif call.sent_before and call.op == "force_release":
                call.error = Unavailable(
                    f"the connection to the sidecar at {self.path} ended; has it been restarted? "
                    f"This {call.op} may have been carried out",
                    may_have_happened=True,
                )
                self._mark_done(call)
        # What they were granted, the claims of the next connection give back; so no owner is held back for them.
        self.unanswered_cancels = {}
        self._deferred = {}
        if self._bye is not None and not self._ticket:
            self.finish()
        self._releases_after_claims = bytearray()
        self._answer_handlers = {}
        # New ones: in a forked child the old may be in use without end by a send() of a thread
        # that exists in the parent only.
        self._discard_received()
        self.unsent = bytearray()
        self._needs_reset = False

    def _drop_abandoned(self, call: Call[Any], now: int) -> None:
        """Its caller does not wait for call, and it will not be sent again."""
        if call.sent_before and call.op == "acquire":
            self._note_unreleased(now + 2 * self._watchdog_lease_ns)
        self._mark_done(call)

    def _note_unreleased(self, until: int) -> None:
        self.unreleased_until = max(self.unreleased_until, until)

    def _on_hello(self, fields: Fields, now: int) -> None:
        answer = protocol.hello_ok(fields)
        if answer.v != protocol.VERSION:
            raise Unsupported(
                f"the sidecar at {self.path} (version {answer.version}) speaks protocol version {answer.v}, "
                f"this client {protocol.VERSION}: update the older of the two."
            )
        # The sidecar read its clock between the two. One of ours that is behind would let us believe for too long.
        if not self._hello_sent_at - 1_000_000_000 <= answer.now_ns <= now:
            ahead = (answer.now_ns - now) / 1e9
            raise Unsupported(
                f"the clock of the sidecar at {self.path} (CLOCK_BOOTTIME) differs from ours by {ahead:g} s: "
                "run both in one time namespace."
            )
        if answer.resumed and not self._ticket:
            raise ProtocolError("it resumed a session without having been asked to")
        self._watchdog_lease_ns = answer.lease_ms * 1_000_000
        self._sidecar_uuid = answer.sidecar
        if answer.resumed:
            self._ticket = answer.ticket
            self._send_claims() if self._bye is None else self._send_bye()
        elif self._bye is not None:
            self.finish()
        else:
            self._on_new_session()
            self._ticket = answer.ticket  # not before: with it goes what was granted under it
            self._start_serving(now)

    def _send_claims(self) -> None:
        """Claims what is held at this moment. What was found lost is the sidecar's to release."""
        epoch = self._epoch + 1
        claimed = {number: hold for number, hold in self._holds.items() if not hold.lost_reason}
        pairs: list[int] = []
        for hold in claimed.values():
            pairs += (hold.number, hold.entries)
            hold.epoch = epoch
        frames = bytearray()
        steps: dict[int, Callable[[Fields, int], None]] = {}
        size = 2 * protocol.MAX_CLAIMS
        for start in range(0, len(pairs) or 1, size):
            self._last_id += 1
            last = start + size >= len(pairs)
            frames += protocol.claim(self._last_id, pairs[start : start + size], more=not last)
            steps[self._last_id] = self._on_claimed if last else self._on_claim_page
        self._holds = claimed
        self._epoch = epoch
        self._enter_stage(Stage.CLAIMING, frames, steps)

    def _on_claim_page(self, _: Fields, now: int) -> None:
        """One page of the claims was read; what counts is the last."""

    def _on_claimed(self, _: Fields, now: int) -> None:
        if self._bye is None:
            self._start_serving(now)

    def _on_new_session(self) -> None:
        """The sidecar knows nothing of what was held: it is good as long as was told."""
        for hold in self._holds.values():
            hold.own_deadline = self.deadline(hold)
            hold.fixed_lease = True
        # At once, for the new session may use the old numbers.
        self._holds = {}
        self._epoch += 1
        for call in self._pending.values():
            if isinstance(call, Confirm) and not call.done:
                call.awaited = AwaitedAnswer.INFO
                if call.sidecar_uuid != self._sidecar_uuid:
                    call.error = _release_unknown()
                    # Commit:
                    call.state = CallState.DONE  # _serve() leaves it out
                    self.done_calls += [call]

    def _start_serving(self, now: int) -> None:
        """Asks what waits; the session is as if nothing had happened."""
        pending: dict[int, Call[Any]] = {}
        out = bytearray(self._releases_after_claims)
        releases = len(out)
        for call in self._pending.values():
            if call.done:  # abandoned after this was interrupted, when the call had its new id
                continue
            if isinstance(call, Confirm):
                assert call.released_hold is not None
                call.free_at = self._lease_end(call.released_hold, now)  # the successor may have renewed it
            self._last_id += 1
            if isinstance(call, Confirm) and call.awaited is AwaitedAnswer.INFO:
                out += protocol.info(self._last_id, call.name)
            else:
                out += call.encode(self._last_id, now)
            call.id = self._last_id
            call.end_offset = self._queued_bytes + len(out)
            call.state = CallState.QUEUED
            pending[call.id] = call
        self._acknowledged = self._queued_bytes
        self._last_release_end = self._queued_bytes + releases
        self._pending = pending
        self._releases_after_claims = bytearray()
        self.unreleased_until = 0
        self._enter_stage(Stage.SERVING, out, {})

    def _on_info(self, call: Confirm, lock: protocol.LockInfo | None, now: int) -> None:
        """The successor has described the lock of call: sends the confirm, unless it still has the hold."""
        assert call.released_hold is not None
        error: LocksidecarError | None = None
        if lock is not None and lock.hold == call.released_hold.number:
            error = LocksidecarError(
                "the sidecar was restarted before it had read the release, and its successor did not resume the session"
            )
        if error is not None or call.abandoned:
            self._on_answer(call, None, error)
            return
        id = self._last_id + 1
        frame = call.encode(id, now)
        queued = self._queued_bytes + len(frame)
        # Commit:
        del self._pending[call.id]
        self._last_id = id
        call.awaited = AwaitedAnswer.CONFIRM
        call.id = id
        call.end_offset = queued
        self._pending[id] = call
        self._queued_bytes = queued
        self.unsent += frame
        self._processed = self._frame_end

    # --- Requests ---

    def submit(self, call: Call[Any], now: int) -> None:
        """Queues call, or keeps it until it can be queued. If this raises, nothing of it is asked."""
        self.undo_abandoned(now)
        if self.failure is not None:
            raise _make_error(type(self.failure), str(self.failure), False)
        if len(self.unsent) > MAX_UNSENT:
            raise Unavailable(
                f"the sidecar at {self.path} does not read what it is sent; is it stopped or overloaded? "
                "Nothing was sent"
            )
        id = self._last_id + 1
        if self.stage is Stage.SERVING and not (call.owner and call.owner in self.unanswered_cancels):
            self._queue_call(call, id, now)
            return
        if self.stage is Stage.SERVING:
            self._deferred.setdefault(call.owner, []).append(call)
        # Commit:
        self._last_id = id
        call.id = id
        call.state = CallState.WAITING
        self._pending[id] = call

    def _queue_call(self, call: Call[Any], id: int, now: int) -> None:
        frame = call.encode(id, now)
        queued = self._queued_bytes + len(frame)
        last_id = max(self._last_id, id)
        # Commit:
        self._last_id = last_id
        call.id = id
        call.end_offset = queued
        call.state = CallState.QUEUED
        self._pending[id] = call
        self._queued_bytes = queued
        self.unsent += frame

    def submit_confirm(self, call: Confirm, now: int) -> None:
        """Requests the confirmation of a release that was queued just now. A call that cannot be sent is done, with
        the error."""
        hold = call.released_hold
        assert hold is not None
        call.sidecar_uuid = self._sidecar_uuid
        call.free_at = self._lease_end(hold, now)
        if hold.epoch != self._epoch and self.failure is None:
            call.error, call.state = _release_unknown(), CallState.DONE
            return
        try:
            self.submit(call, now)
        except LocksidecarError as e:
            call.error, call.state = e, CallState.DONE

    def _lease_end(self, hold: Hold, now: int) -> int:
        """When the lease of hold, which was released, ends in Redis at the latest if Redis does not execute that."""
        deadline = self._lease_deadline_of(hold)
        if hold.lease_ns:
            # The deadline is a hundredth of the lease and 2 ms before the end of the lease; Redis's delay comes on top.
            return deadline + hold.lease_ns // 50 + 10_000_000
        # The sidecar may just have renewed it, and the lease event may not have been received.
        return max(deadline, now + self._watchdog_lease_ns)

    def abandon(self, call: Call[Any], now: int) -> None:
        """The caller of call has left. What the call is granted, now or later, is released.

        If this is interrupted it is called again; calls after the first do nothing.
        """
        if call.done:
            if call.hold is not None:
                self._to_undo.append(call)
                self.undo_abandoned(now)
        elif call.id not in self._pending:
            call.abandoned, call.state = True, CallState.DONE  # it was never asked
        elif self.stage is not Stage.SERVING or call.state is CallState.WAITING:
            call.abandoned = True
            self._drop_abandoned(call, now)
        elif call.op != "acquire":
            call.abandoned = True
        elif not call.abandoned:
            frame = protocol.cancel(call.id)
            queued = self._queued_bytes + len(frame)
            key = call.owner or -call.id
            # Commit:
            call.abandoned = True
            self.unanswered_cancels[key] = call
            self._queued_bytes = queued
            self.unsent += frame

    def undo_abandoned(self, now: int) -> None:
        """Gives back what abandoned acquires were granted, and sends what their owners asked meanwhile.

        If this is interrupted it is called again.
        """
        while self._to_undo:
            call = self._to_undo[-1]
            if call.hold is not None:
                self._release_entry(call.hold, now, call=call)
            key = call.owner or -call.id
            if self.unanswered_cancels.get(key) is call:
                for waiting in self._deferred.get(key, ()):
                    if waiting.state is CallState.WAITING:
                        self._queue_call(waiting, waiting.id, now)
                self._deferred.pop(key, None)
                self.unanswered_cancels.pop(key, None)
            self._to_undo.pop()

    # --- Holds ---

    def deadline(self, hold: Hold) -> int:
        """Until when hold may be believed in: the largest deadline that it was told, or the end of its max_hold."""
        deadline = self._lease_deadline_of(hold)
        return min(deadline, hold.max_hold_end) if hold.max_hold_end else deadline

    def _lease_deadline_of(self, hold: Hold) -> int:
        deadline = hold.own_deadline
        if not hold.fixed_lease and hold.lease_events_seen != self._lease_events:
            deadline = max(deadline, self._lease_deadline)
        return deadline

    def update_lost(self, hold: Hold, read_at: int) -> str:
        """Why hold is lost; "" if it is not.

        read_at is a time; all that had arrived by then has been processed. A deadline that has passed since then is
        no loss yet: a later one may have arrived.
        """
        if not hold.lost_reason and hold.entries and read_at >= self.deadline(hold):
            self._mark_lost(hold, "max_hold" if hold.max_hold_end and read_at >= hold.max_hold_end else "expired")
        return hold.lost_reason

    def release_entry(self, entry: Entry, read_at: int) -> str:
        """One entry less, and entry is released. Returns why its hold is lost, "" if it was still good."""
        reason = self.update_lost(entry.hold, read_at)
        self._release_entry(entry.hold, read_at, entry=entry)
        return reason

    def _release_entry(
        self, hold: Hold, now: int, *, entry: Entry | None = None, call: Call[Any] | None = None
    ) -> None:
        """entry, or the call that was granted the entry and whose caller never received it, is released."""
        known = hold.epoch == self._epoch
        serving = self.stage is Stage.SERVING
        frame = protocol.release(hold.number) if known and self.stage >= Stage.CLAIMING else b""
        if known and not serving and self.stage is not Stage.ENDED:
            # It may have been renewed up to the end of the connection, without our having received that.
            self._note_unreleased(max(self.deadline(hold), now + self._watchdog_lease_ns) + self._watchdog_lease_ns)
        released = entry or _Unused()
        granted = call or _Unused()
        entries = hold.entries - 1
        out = self.unsent if serving else self._releases_after_claims
        queued = self._queued_bytes + (len(frame) if serving else 0)
        last_release = queued if serving and known else self._last_release_end
        number = hold.number
        ends = entries == 0 and self._holds.get(number) is hold
        holds = self._holds if ends else {number: hold}
        live = self.live_holds - (entries == 0 and not hold.lost_reason)
        # Commit:
        released.released = True
        granted.hold = None
        hold.entries = entries
        self._queued_bytes = queued
        out += frame
        self._last_release_end = last_release
        del holds[number]
        self.live_holds = live

    def _mark_lost(self, hold: Hold, reason: str) -> None:
        # Commit:
        hold.lost_reason = reason
        self.live_holds -= 1
        self.lost_holds += [hold]

    def latest_deadline(self) -> int:
        """The latest deadline of all holds that are neither released nor lost; 0 if there is none."""
        return max((self.deadline(h) for h in self._holds.values() if not h.lost_reason), default=0)

    # --- What the sidecar says ---

    def on_data(self, data: bytes, now: int) -> None:
        self.received.append(data)
        self.process(now)

    def has_work(self) -> bool:
        """Whether process() has something to do, or the edge to take."""
        return bool(self.done_calls or self.received or self._to_undo) or self._processed < len(self._buffer)

    def process(self, now: int) -> None:
        """Processes what has arrived. A breach of the protocol ends the session.

        If this is interrupted, the next call continues where it was.
        """
        try:
            self.undo_abandoned(now)
            while self.stage > Stage.DISCONNECTED:
                if self.received:
                    received = self._buffer[self._processed :] + b"".join(self.received)
                    nothing: list[bytes] = []
                    # Commit:
                    self._buffer = received
                    self._processed = 0
                    self.received = nothing
                if (found := protocol.split(self._buffer, self._processed)) is None:
                    break
                body, self._frame_end = found
                self._on_frame(body, now)
                self._processed = self._frame_end
                if self._to_undo:
                    self.undo_abandoned(now)
        except ProtocolError as e:
            self.fail(f"the sidecar at {self.path} broke the protocol: {e}.", ProtocolError)
        except Unsupported as e:
            self.fail(str(e), Unsupported)

    def _on_frame(self, body: bytes, now: int) -> None:
        # What only looks like a grant goes the long way, where it is found out.
        if (grant := protocol.grant(body)) is not None:
            id, answer = grant
            call = self._pending.get(id)
            if call is not None and call.op == "acquire" and call.state is CallState.QUEUED:
                self._on_grant(call, answer)
                return
        match reply := protocol.decode(body):
            case protocol.Answer(id=id, fields=fields):
                if (handler := self._answer_handlers.get(id)) is not None:
                    handler(fields, now)
                    return
                if self._bye is not None:
                    return  # all but bye has been given up
                # Nothing is committed before all that can be wrong has been checked: what stays
                # pending is told when the session fails.
                call = self._queued_call(id)
                if isinstance(call, Confirm) and call.awaited is AwaitedAnswer.INFO:
                    self._on_info(call, protocol.info_ok(fields).lock, now)
                    return
                parsed = call.parse(fields)
                if isinstance(parsed, protocol.AcquireOK):
                    self._on_grant(call, parsed)
                else:
                    self._on_answer(call, parsed, None)
            case protocol.Refusal(id=0):
                self._on_connection_error(reply, now)
            case protocol.Refusal(id=id, code=code, msg=msg):
                if id in self._answer_handlers:
                    if self._ticket and code == "unavailable":
                        self.on_disconnected(now)  # it is stopping
                        return
                    error = _ERRORS_BY_CODE.get(code, LocksidecarError)
                    self.fail(f"the sidecar at {self.path} refused the session: {msg or code}.", error)
                    return
                if self._bye is not None:
                    return
                call = self._queued_call(id)
                self._on_answer(call, None, _refusal_error(call, reply))
            case protocol.LostEvent(hold=number, reason=reason):
                self._on_lost(number, reason)
            case protocol.LeaseEvent(deadline_ns=deadline):
                self._on_lease(deadline)
            case protocol.UnknownEvent():
                pass

    def _on_connection_error(self, error: protocol.Refusal, now: int) -> None:
        match error.code:
            case "unavailable":
                self.on_disconnected(now)  # it is stopping
            case "limit" | "no_hello" if self._ticket and self.stage < Stage.SERVING:
                self.on_disconnected(
                    now
                )  # it had no room for us just now, or we were too slow; the session waits for us
            case "limit" | "denied":
                self.fail(f"the sidecar at {self.path} refused the session: {error.msg}.", _ERRORS_BY_CODE[error.code])
            case code:
                self.fail(f"the sidecar at {self.path} ended the connection: {error.msg} ({code}).", ProtocolError)

    def _queued_call(self, id: int) -> Call[Any]:
        call = self._pending.get(id)
        if call is None or call.state is not CallState.QUEUED:
            raise ProtocolError(f"it answered request {id}, which is not waiting for an answer")
        return call

    def _on_answer(self, call: Call[Any], answer: object, error: LocksidecarError | None) -> None:
        """call is done, and grants nothing."""
        acknowledged = max(self._acknowledged, call.end_offset)
        to_undo = [call] if call.abandoned else []
        # Commit:
        call.answer = answer
        call.error = error
        call.state = CallState.DONE
        del self._pending[call.id]
        self.done_calls += [call]
        self._to_undo += to_undo
        self._acknowledged = acknowledged
        self._processed = self._frame_end

    def _on_grant(self, call: Call[Any], grant: protocol.AcquireOK) -> None:
        acknowledged = max(self._acknowledged, call.end_offset)
        to_undo = [call] if call.abandoned else []
        hold = self._holds.get(grant.hold)
        deadline = grant.deadline_ns
        live = self.live_holds
        # A hold believed lost stays lost. If the sidecar knows better, its new entry gets a belief of its own.
        if hold is None or hold.lost_reason:
            # A re-entry of a hold that was left here meanwhile does not tell what lease the hold has:
            # then it is good for as long as was told.
            leased = call.fixed_lease or grant.count > 1 if hold is None else hold.fixed_lease
            lease = 0 if grant.count > 1 else call.lease_ns
            hold = Hold(
                grant.hold,
                call.name,
                grant.token,
                deadline,
                leased,
                self._lease_events,
                self._epoch,
                grant.end_ns,
                lease,
            )
            live += 1
        else:
            deadline = max(self.deadline(hold), deadline)
        entries = hold.entries + 1
        # Commit:
        self._holds[hold.number] = hold
        self.live_holds = live
        hold.own_deadline = deadline
        hold.lease_events_seen = self._lease_events
        hold.entries = entries
        call.hold = hold
        call.answer = grant
        call.state = CallState.DONE
        del self._pending[call.id]
        self.done_calls += [call]
        self._to_undo += to_undo
        self._acknowledged = acknowledged
        self._processed = self._frame_end

    def _on_lost(self, number: int, reason: str) -> None:
        hold = self._holds.get(number)
        if hold is None:  # released here while the event was under way
            return
        lost = [] if hold.lost_reason else [hold]
        live = self.live_holds - len(lost)
        why = hold.lost_reason or reason
        # Commit:
        hold.epoch = NO_EPOCH
        hold.lost_reason = why
        self.live_holds = live
        self.lost_holds += lost
        del self._holds[number]
        self._processed = self._frame_end

    def _on_lease(self, deadline: int) -> None:
        if deadline < self._lease_deadline:
            # The newest event no longer speaks for the older ones.
            for hold in self._holds.values():
                hold.own_deadline = self.deadline(hold)
                hold.lease_events_seen = self._lease_events
        # Commit:
        self._lease_events += 1
        self._lease_deadline = deadline
        self._processed = self._frame_end

    def _mark_done(self, call: Call[Any]) -> None:
        # Commit:
        call.state = CallState.DONE
        self.done_calls += [call]
        self._pending.pop(call.id, None)

    # --- The end ---

    def close(self, now: int) -> Call[bool]:
        """No more is asked, and what is held is lost: the sidecar will give it away. Bye is said as soon as
        that can be done; the call is done when it was answered, or need not be said.

        If this is interrupted it is called again.
        """
        if self._bye is None:
            if self.live_holds or self._pending or self._last_release_end > self._acknowledged:
                self._note_unreleased(
                    max(self.latest_deadline(), now + self._watchdog_lease_ns) + self._watchdog_lease_ns
                )
            for hold in self._holds.values():
                hold.epoch = NO_EPOCH
                if not hold.lost_reason:
                    self._mark_lost(hold, "closed")
            self._holds = {}
            if self.failure is None:
                self.failure = ClientClosed("The client was closed.")
            self.fail_pending()
            self._bye = bye_call()
        bye = self._bye
        if bye.done:
            return bye
        if not self._ticket or self.stage is Stage.ENDED:
            self.finish()
        elif self.stage >= Stage.CLAIMING and self._on_bye not in self._answer_handlers.values():
            self._frame_end = self._processed
            self._send_bye()
        return bye

    def _send_bye(self) -> None:
        assert self._bye is not None
        self._last_id += 1
        id = self._last_id
        self._enter_stage(Stage.SERVING, self._bye.encode(id, 0), {id: self._on_bye})

    def _on_bye(self, _: Fields, now: int) -> None:
        self.finish()

    def finish(self) -> None:
        """The sidecar knows, or need not be told, that the session has ended."""
        self.unreleased_until = 0
        self.stage = Stage.ENDED
        if self._bye is not None and not self._bye.done:
            self._bye.answer = True
            self._mark_done(self._bye)

    def fail(self, why: str, error: type[LocksidecarError] = Unavailable) -> None:
        """No more can be sent or received. Every waiting call ends; holds stay good to their deadlines."""
        if self.failure is None:
            self.failure = error(why)
        self.stage = Stage.ENDED
        self.fail_pending()

    def fail_pending(self) -> None:
        """Of a failed session. If it is interrupted it is called again."""
        if self.failure is None:
            return
        error, why = type(self.failure), str(self.failure)
        first_unsent = self._queued_bytes - len(self.unsent)
        for call in list(self._pending.values()):
            if call.done:
                continue
            if isinstance(call, Confirm):
                call.error = _make_error(error, why, False)
            elif not (call.sent_before or (call.state is CallState.QUEUED and call.end_offset <= first_unsent)):
                call.error = _make_error(error, f"{why} This {call.op} was not carried out", False)
            elif call.op == "acquire":
                call.error = _make_error(error, f"{why} If this acquire was granted, that ended with the session", True)
            else:
                call.error = _make_error(error, f"{why} This {call.op} may have been carried out", True)
            self._mark_done(call)
        self._pending.clear()
        self.unanswered_cancels = {}
        self._deferred = {}
        if self.stage is Stage.ENDED:
            self.finish()
            self._needs_reset = True
            self._reset(0)


@dataclass(slots=True)
class _Unused:
    """Stands for the entry, or the call, that a release does not concern, so that its commit need not branch."""

    released: bool = False
    hold: Hold | None = None


def _make_error(error: type[LocksidecarError], message: str, may_have_happened: bool) -> LocksidecarError:
    if issubclass(error, Unavailable):
        return error(message, may_have_happened=may_have_happened)
    return error(message)


_ERRORS_BY_CODE: Final[dict[str, type[LocksidecarError]]] = {
    "timeout": LockTimeout,
    "deadlock": Deadlock,
    "unavailable": Unavailable,
    "denied": Denied,
    "limit": LimitExceeded,
    "not_held": NotHeld,
    "bad_request": BadRequest,
    "unsupported": Unsupported,
}


def _release_unknown() -> LocksidecarError:
    return LocksidecarError("the sidecar was restarted without its state, and does not know of the release")


def _refusal_error(call: Call[Any], refusal: protocol.Refusal) -> LocksidecarError:
    error = _ERRORS_BY_CODE.get(refusal.code, LocksidecarError)
    if isinstance(call, Confirm):
        if error is Unsupported:
            why = "this sidecar is older than this client and does not confirm releases: upgrade it"
            return Unsupported(why, code=refusal.code)
        return error(refusal.msg or refusal.code, code=refusal.code)
    what = f"{call.op} {call.name!r}" if call.name else call.op
    return error(f"{what}: {refusal.msg or refusal.code}", code=refusal.code)


class Entry:
    """One entry into one hold: what its user has in hand, from acquire to release.

    A late release can never free a newer hold, because nothing here ever refers to another one.

    read_at is as in Session.reason().
    """

    __slots__ = ("hold", "released", "session")

    def __init__(self, session: Session, hold: Hold) -> None:
        self.session = session
        self.hold = hold
        self.released = False

    def check(self, read_at: int) -> None:
        self._require_held("is not held any more: it was released")
        if reason := self.session.update_lost(self.hold, read_at):
            raise self.loss_error(reason)

    def release(self, read_at: int) -> None:
        self._require_held("was released before")
        if reason := self.session.release_entry(self, read_at):
            raise self.loss_error(reason)

    def release_confirmed(self, call: Confirm, read_at: int) -> None:
        """Releases, and queues call, the request for the confirmation, after the release. If this is interrupted,
        released says whether the release is done."""
        self.release(read_at)
        self.session.submit_confirm(call, read_at)

    def lost(self, read_at: int) -> str:
        if self.session.inherited:
            self._require_held("")
        return self.session.update_lost(self.hold, read_at)

    def remaining(self, read_at: int) -> int:
        """Nanoseconds from read_at until the deadline; 0 if the lock is not held any more."""
        if self.released or self.session.inherited or self.session.update_lost(self.hold, read_at):
            return 0
        return self.session.deadline(self.hold) - read_at

    def deadline(self, read_at: int) -> int:
        self.session.update_lost(self.hold, read_at)
        return self.session.deadline(self.hold)

    def has_ended(self) -> bool:
        """Whether its deadline does not matter any more."""
        return self.released or self.session.inherited or bool(self.hold.lost_reason)

    def _require_held(self, what: str) -> None:
        if self.session.inherited:
            raise NotHeld(f"the lock {self.hold.name!r} is the parent process's: nothing is inherited by fork")
        if self.released:
            raise NotHeld(f"the lock {self.hold.name!r} {what}")

    def loss_error(self, reason: str) -> LockLost:
        what = _LOSS_TEXTS.get(reason, reason)
        return LockLost(f"the lock {self.hold.name!r} was lost: {what}", name=self.hold.name, reason=reason)


_LOSS_TEXTS: Final = {
    "expired": "its deadline passed (expired)",
    "deleted": "its key vanished from Redis (deleted)",
    "stolen": "somebody else's name is in its key in Redis (stolen)",
    "forced": "an operator ended it (forced)",
    "max_hold": "its max_hold passed (max_hold)",
    "forgotten": "the sidecar was restarted and knows nothing of it (forgotten)",
    "closed": "this client was closed (closed)",
}

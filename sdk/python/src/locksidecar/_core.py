"""The state of a session, without I/O and without a clock: bytes in, bytes out, the time is an argument.

One Session is one session with the sidecar; it outlives its connections. The I/O layer around it connects, moves its
bytes and wakes its callers: Transport with SharedSession for threads, Transport with aio's _AsyncSession for tasks.
Times are nanoseconds of CLOCK_BOOTTIME, the clock of every deadline.

A Session is not thread-safe: the I/O layer serializes the calls.

Invariant: an exception that a signal handler raises leaves a Session consistent. CPython runs handlers after calls,
so a handler may raise in every method here. Each method therefore prepares its change first and commits it then. The
statements after the comment "Commit:" make no call and do not branch, so CPython runs no handler between them. A
method that is interrupted before its commit has changed nothing, or only what its next run repeats. The commit that
applies a received frame also counts the frame as processed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, cast

from . import _dropped, _log
from . import _protocol as protocol
from ._calls import (
    DONE,
    NO_EPOCH,
    QUEUED,
    UNREPEATABLE,
    AwaitedAnswer,
    Call,
    CallState,
    Confirm,
    Downgrade,
    Hold,
    HoldMode,
    bye_call,
    confirm_call,
    downgrade_call,
)
from ._clock import clock_of
from ._errors import (
    BadRequest,
    ClientClosed,
    Deadlock,
    Denied,
    LimitExceeded,
    LockLost,
    LocksidecarError,
    LockTimeout,
    LossReason,
    NotHeld,
    ProtocolError,
    Unavailable,
    Unsupported,
)
from ._strict import Fields
from ._version import __version__

# Bytes. Beyond this, submit() refuses requests: if the sidecar does not read, the queue must not grow without bound.
MAX_UNSENT: Final = 1 << 20


class Stage(IntEnum):
    """The phase of a session on its current connection.

    ::

                      on_connected()           hello: resumed           last claim answered
        DISCONNECTED ───────────────► GREETING ──────────────► CLAIMING ───────────────────► SERVING
           ▲                             │        hello: a new session, nothing to claim       ▲ │
           │                             └─────────────────────────────────────────────────────┘ │
           └───────── on_disconnected(), from GREETING, CLAIMING and SERVING ◄───────────────────┘

    Every stage goes to ENDED by fail(), or by finish() after close(). If the client was closed, the session sends bye
    where it would send claims, and goes from GREETING to SERVING.
    """

    ENDED = 0  # final: nothing is sent or received any more
    DISCONNECTED = 1  # calls wait, holds are valid until their deadlines; ends with the next connection
    GREETING = 2  # hello is queued; ends with its answer
    CLAIMING = 3  # the claims are queued, releases and calls wait; ends with the answer to the last claim
    SERVING = 4  # requests are sent; ends with the connection


# A global is read in a tenth of the time of a member of an Enum.
ENDED: Final = Stage.ENDED
DISCONNECTED: Final = Stage.DISCONNECTED
CLAIMING: Final = Stage.CLAIMING
SERVING: Final = Stage.SERVING
_NO_MODE: Final = HoldMode.NONE


@dataclass(slots=True, eq=False)
class Session:
    """The requests, answers and holds of one session, on one connection after another.

    Without a connection, calls wait, and holds are valid until their deadlines. On the next connection the session is
    resumed: it claims its holds, and then sends the waiting requests in their order.

    Invariant: after an owner abandoned an acquire, the owner's next acquire is sent only when the answer to the
    abandoned one was received and, if it was a grant, its release is queued. The same holds after a release that was
    interrupted. Otherwise the sidecar might find that the owner holds the lock, and answer deadlock, or enter the hold
    again. So submit() first completes what was given up.
    """

    path: str
    stage: Stage = Stage.DISCONNECTED
    # The calls that became DONE, and the holds that became LOST. The I/O layer removes them and wakes their callers.
    done_calls: list[Call[Any]] = field(default_factory=list)
    lost_holds: list[Hold] = field(default_factory=list)
    # What the I/O layer writes to the log.
    log: list[_log.Record] = field(default_factory=list)
    # What the I/O layer received, in chunks. process() moves it to _buffer.
    received: list[bytes] = field(default_factory=list)
    # The I/O layer deletes what it has sent.
    unsent: bytearray = field(default_factory=bytearray)
    # What complete_given_up() completes: calls that no caller waits for, and entries whose release was interrupted.
    # Code that is interrupted appends to it first, with += and so without a call, possibly in another thread. So it is
    # never replaced, and items are deleted at its start only.
    given_up: list[Call[Any] | Entry] = field(default_factory=list)
    # The names of locks whose releases may not be sent. The I/O layer deletes them when everything is sent.
    unsent_releases: list[str] = field(default_factory=list)
    # Abandoned acquires without an answer, by owner; those of anonymous owners by their negated id.
    unanswered_cancels: dict[int, Call[Any]] = field(default_factory=dict)
    # Why the session accepts no more requests. Its holds stay valid until their deadlines.
    failure: LocksidecarError | None = None
    # This is the copy of a forked child: the session belongs to the parent.
    inherited: bool = False
    live_holds: int = 0  # holds that are neither RELEASED nor LOST
    # Locks were given up, and the sidecar may not have read that: it, or Redis, may keep them until this time.
    # 0: there are none.
    unreleased_until: int = 0
    grants: int = 0  # that were received
    warned_after: int = -1  # how many grants there had been at the last warning of WaitWatch
    asked_at: float = -math.inf  # when a WaitWatch asked last why an acquire waits, by time.monotonic()

    _buffer: bytes = b""
    _processed: int = 0  # how many bytes of _buffer are processed
    _frame_end: int = 0  # where the current frame ends in _buffer, or the last one ended
    _queued_bytes: int = 0  # all bytes that were ever queued in unsent
    _last_id: int = 0
    _pending: dict[int, Call[Any]] = field(default_factory=dict)  # calls that are WAITING or QUEUED, by id
    # Calls that wait for the answer to their owner's abandoned acquire, by owner.
    _deferred: dict[int, list[Call[Any]]] = field(default_factory=dict)
    _holds: dict[int, Hold] = field(default_factory=dict)  # those of the current epoch, by number
    _lease_events: int = 0  # how many lease events were received
    _lease_deadline: int = 0  # the deadline in the newest of them
    _last_release_end: int = 0  # where the last release ends among all bytes that were ever queued
    _acknowledged: int = 0  # how many of these bytes the sidecar has certainly read

    # Of the handshake:
    _ticket: str = ""
    _sidecar_uuid: str = ""  # of the sidecar that answered the newest hello
    _sidecar_version: str = ""  # the same
    _watchdog_lease_ns: int = 0
    _hello_sent_at: int = 0
    # The handlers of the answers to hello, claim and bye, by id. Their second argument is the time.
    _answer_handlers: dict[int, Callable[[Fields, int], None]] = field(default_factory=dict)
    # Counts the handshakes. The sidecar has the holds of the current epoch under their numbers, and no others.
    _epoch: int = 1
    _releases_after_claims: bytearray = field(default_factory=bytearray)  # releases during CLAIMING
    _needs_reset: bool = False  # the last connection has ended, and _reset() is not complete
    _bye: Call[bool] | None = None  # None: close() was not called
    _away_since: int = 0  # when the last connection ended that had served; 0: none has, or another one serves

    # --- Connections ---

    @property
    def can_be_resumed(self) -> bool:
        """Whether a sidecar may still have this session, also without a connection."""
        return bool(self._ticket) and self.stage is not Stage.ENDED

    @property
    def may_have_locks(self) -> bool:
        """Whether a sidecar, or its successor, may keep locks for this session until it is sent bye.

        A sidecar that dies loses what it has not read. So a release counts until something after it is answered.
        """
        return (self.stage > Stage.DISCONNECTED or self.can_be_resumed) and bool(
            self._holds or self._pending or self.unreleased_until or self._last_release_end > self._acknowledged
        )

    def on_connected(self, now: int) -> None:
        """Queues hello: there is a new connection."""
        self._reset(now)
        id = self._last_id + 1
        hello = protocol.hello(id, f"python/{__version__}", resumable=True, resume=self._ticket)
        self._hello_sent_at = now
        self._last_id = id
        self._discard_received()
        self._enter_stage(Stage.GREETING, hello, {id: self._on_hello})

    def _enter_stage(
        self, stage: Stage, frames: bytes | bytearray, handlers: dict[int, Callable[[Fields, int], None]]
    ) -> None:
        queued = self._queued_bytes + len(frames)
        # Commit:
        self.stage = stage
        self._answer_handlers = handlers
        self._queued_bytes = queued
        self.unsent += frames
        self._processed = self._frame_end

    def _discard_received(self) -> None:
        self.received = []
        self._buffer = b""
        self._processed = 0
        self._frame_end = 0

    def on_disconnected(self, now: int) -> None:
        """The connection ended, and this client did not end it."""
        what = "the sidecar at %s has closed the connection; locks held: %d"
        self._disconnect(now, (_log.INFO, what, (self.path, self.live_holds)))

    def on_descriptor_closed(self, now: int) -> None:
        """Other code of this process has closed the connection: the sidecar releases the locks of this session.

        Idempotent: if this is interrupted, it is called again.
        """
        what = (
            "other code of this program has closed the descriptor of the connection to the sidecar at %s, as "
            "os.closerange() does: connect after it; locks lost: %d"
        )
        record = (_log.WARNING, what, (self.path, self.live_holds))
        self._lose_all()
        self._disconnect(now, record)

    def _disconnect(self, now: int, record: _log.Record) -> None:
        if self.stage > Stage.DISCONNECTED:
            if self._last_release_end > self._acknowledged:  # the sidecar may have died before it read it
                self._note_unreleased(now + 2 * self._watchdog_lease_ns)
            log: list[_log.Record] = []
            since = self._away_since
            if self.stage is Stage.SERVING and self._bye is None:
                since = now
                log = [record]
            # Commit:
            self.log += log
            self._away_since = since
            self._needs_reset = True
            self.stage = Stage.DISCONNECTED
            self._reset(now)

    def _reset(self, now: int) -> None:
        """Keeps the calls that can be sent again. If it is interrupted, on_connected() calls it again."""
        if not self._needs_reset:
            return
        first_unsent = self._queued_bytes - len(self.unsent)
        for call in list(self._pending.values()):
            if call.state is CallState.QUEUED:
                call.sent_before = call.sent_before or call.end_offset <= first_unsent
                call.state = CallState.WAITING
            if call.abandoned:
                self._drop_abandoned(call, now)
            elif call.sent_before and call.op in UNREPEATABLE:
                call.error = Unavailable(
                    f"the connection to the sidecar at {self.path} ended; has it been restarted? "
                    f"This {call.op} may have been carried out",
                    may_have_happened=True,
                )
                self._mark_done(call)
        # On the next connection the sidecar releases what is not claimed, so also the grants to abandoned acquires.
        # Their owners do not have to wait.
        self.unanswered_cancels = {}
        self._deferred = {}
        if self._bye is not None and not self._ticket:
            self.finish()
        self._releases_after_claims = bytearray()
        self._answer_handlers = {}
        # New objects: in a forked child, a send() of a thread that exists only in the parent may have the old
        # bytearray exported, so that it can never be resized.
        self._discard_received()
        self.unsent = bytearray()
        self._needs_reset = False

    def _drop_abandoned(self, call: Call[Any], now: int) -> None:
        """Ends an abandoned call that is not sent again."""
        if call.sent_before and call.op == "acquire":
            self._note_unreleased(now + 2 * self._watchdog_lease_ns)
        self._mark_done(call)

    def _note_unreleased(self, until: int) -> None:
        self.unreleased_until = max(self.unreleased_until, until)

    def _on_hello(self, fields: Fields, now: int) -> None:
        answer = protocol.hello_ok(fields)
        if answer.v != protocol.VERSION:
            older = "this package (pip install -U locksidecar)" if answer.v > protocol.VERSION else "the sidecar"
            raise Unsupported(
                f"the sidecar at {self.path} (version {answer.version}) speaks protocol version {answer.v}, "
                f"this client (version {__version__}) {protocol.VERSION}: upgrade {older}."
            )
        # The sidecar read its clock between the two readings here. If the clock here is behind, holds would be believed
        # in past their deadlines.
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
        self._sidecar_version = answer.version
        if answer.resumed:
            self._ticket = answer.ticket
            self._send_claims() if self._bye is None else self._send_bye()
        elif self._bye is not None:
            self.finish()
        else:
            if self.live_holds:
                what = "the sidecar at %s does not resume this session: it cannot renew the %d locks held; %s"
                why = answer.msg or "it does not know the session"
                self.log += [(_log.WARNING, what, (self.path, self.live_holds, why))]
            self._on_new_session()
            self._ticket = answer.ticket  # after _on_new_session(): the holds belong to the session of the old ticket
            self._start_serving(now)

    def _send_claims(self) -> None:
        """Claims every hold that is neither RELEASED nor LOST here. The sidecar releases the others."""
        epoch = self._epoch + 1
        claimed = {number: hold for number, hold in self._holds.items() if not hold.lost_reason}
        pairs: list[int] = []
        for hold in claimed.values():
            pairs += (hold.number, hold.entries)
            hold.epoch = epoch
        frames = bytearray()
        handlers: dict[int, Callable[[Fields, int], None]] = {}
        size = 2 * protocol.MAX_CLAIMS
        for start in range(0, len(pairs) or 1, size):
            self._last_id += 1
            last = start + size >= len(pairs)
            frames += protocol.claim(self._last_id, pairs[start : start + size], more=not last)
            handlers[self._last_id] = self._on_claimed if last else self._on_claim_page
        self._holds = claimed
        self._epoch = epoch
        self._enter_stage(Stage.CLAIMING, frames, handlers)

    def _on_claim_page(self, _: Fields, now: int) -> None:
        """Only the answer to the last page of the claims matters."""

    def _on_claimed(self, _: Fields, now: int) -> None:
        if self._bye is None:
            self._start_serving(now)

    def _on_new_session(self) -> None:
        """The sidecar does not know the holds of this session: they stay valid until the deadlines known now."""
        for hold in self._holds.values():
            hold.own_deadline = self.deadline(hold)
            hold.fixed_lease = True
        # Before anything is granted: the new session may use the same hold numbers.
        self._holds = {}
        self._epoch += 1
        for call in self._pending.values():
            if isinstance(call, Confirm) and not call.done:
                call.awaited = AwaitedAnswer.INFO
                if call.sidecar_uuid != self._sidecar_uuid:
                    call.error = _release_unknown()
                    # Commit:
                    call.state = CallState.DONE  # _start_serving() does not send it
                    self.done_calls += [call]
            elif isinstance(call, Downgrade) and not call.done:
                call.error = _unknown_hold(call)
                # Commit:
                call.state = CallState.DONE
                self.done_calls += [call]

    def _start_serving(self, now: int) -> None:
        """Sends the releases that waited for the claims, then the pending calls in their order, with new ids."""
        pending: dict[int, Call[Any]] = {}
        out = bytearray(self._releases_after_claims)
        releases = len(out)
        for call in self._pending.values():
            if call.done:  # abandoned when it already had its new id, after this method was interrupted
                continue
            if isinstance(call, Confirm):
                assert call.released_hold is not None
                call.free_at = self._lease_end(call.released_hold, now)  # the new sidecar may have renewed it
            self._last_id += 1
            if isinstance(call, Confirm) and call.awaited is AwaitedAnswer.INFO:
                out += protocol.info(self._last_id, call.name)
            else:
                out += call.encode(self._last_id, now)
            call.id = self._last_id
            call.end_offset = self._queued_bytes + len(out)
            call.state = CallState.QUEUED
            pending[call.id] = call
        log: list[_log.Record] = []
        if self._away_since:
            away = (now - self._away_since) / 1e9
            log = [
                (
                    _log.INFO,
                    "connected to the sidecar at %s again after %.3f s; locks held: %d",
                    (self.path, away, self.live_holds),
                )
            ]
        self.log += log
        self._away_since = 0
        self._acknowledged = self._queued_bytes
        self._last_release_end = self._queued_bytes + releases
        self._pending = pending
        self._releases_after_claims = bytearray()
        self.unreleased_until = 0
        self._enter_stage(Stage.SERVING, out, {})

    def _on_info(self, call: Confirm, lock: protocol.LockInfo | None, now: int) -> None:
        """The new sidecar described the lock of call. Sends confirm, unless that sidecar still has the hold."""
        assert call.released_hold is not None
        error: LocksidecarError | None = None
        if lock is not None and may_have(lock, call.released_hold.number):
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
        """Queues call, or keeps it until it can be queued. If this raises, the call is not submitted."""
        if self.given_up:
            self.complete_given_up(now)
        if self.failure is not None:
            raise _make_error(type(self.failure), str(self.failure), False)
        if len(self.unsent) > MAX_UNSENT:
            raise Unavailable(
                f"the sidecar at {self.path} does not read what it is sent; is it stopped or overloaded? "
                "Nothing was sent"
            )
        if isinstance(call, Downgrade) and call.of is not None and call.of.epoch != self._epoch:
            raise _unknown_hold(call)
        id = self._last_id + 1
        if self.stage is SERVING and not (call.owner and call.owner in self.unanswered_cancels):
            self._queue_call(call, id, now)
            return
        if self.stage is SERVING:
            self._deferred.setdefault(call.owner, []).append(call)
        # Commit:
        self._last_id = id
        call.id = id
        call.state = CallState.WAITING
        self._pending[id] = call

    def _queue_call(self, call: Call[Any], id: int, now: int) -> None:
        frame = call.encode(id, now)
        queued = self._queued_bytes + len(frame)
        last_id = self._last_id if id < self._last_id else id  # a call that has waited has its id already
        # Commit:
        self._last_id = last_id
        call.id = id
        call.end_offset = queued
        call.state = QUEUED
        self._pending[id] = call
        self._queued_bytes = queued
        self.unsent += frame

    def submit_confirm(self, call: Confirm, now: int) -> None:
        """Submits the request for the confirmation of a release that was queued just now.

        This does not raise: a call that cannot be submitted is DONE, with the error.
        """
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

    def unconfirmed(self, hold: Hold, now: int) -> Confirm:
        """The request for the confirmation of a release that is sent later. It is never sent."""
        call = confirm_call(hold)
        call.free_at = self._lease_end(hold, now)
        return call

    def _lease_end(self, hold: Hold, now: int) -> int:
        """The latest time at which the lease of hold ends in Redis, if Redis does not execute its release."""
        deadline = self._lease_deadline_of(hold)
        if hold.lease_ns:
            # The deadline is lease/100 + 2 ms before the end of the lease. The rest is for a delay in Redis.
            return deadline + hold.lease_ns // 50 + 10_000_000
        # The sidecar may have renewed it just now, and the lease event may not have arrived.
        return max(deadline, now + self._watchdog_lease_ns)

    def is_used_by(self, name: str, owner: int) -> bool:
        """Whether owner holds the lock, or waits for it. What was given up does not count, completed or not.

        Any thread may change the session meanwhile. So what was given up is read last: a grant to an abandoned acquire
        is given up in the commit that makes it a hold.
        """
        holds = [h for h in list(self._holds.values()) if h.name == name and h.owner == owner and not h.lost_reason]
        calls = [c for c in list(self._pending.values()) if c.op == "acquire" and c.name == name and c.owner == owner]
        given_up = set(self.given_up)
        for hold in holds:
            ending = [g for g in given_up if g.hold is hold and not (isinstance(g, Entry) and g.released)]
            if hold.entries > len(ending):
                return True
        return any(not (c.abandoned or c in given_up or c.done) for c in calls)

    def is_used(self, name: str) -> bool:
        """Whether the sidecar may have a hold of the lock, or a request for it, as long as nothing is sent or read."""
        return (
            name in self.unsent_releases
            or any(h.name == name for h in list(self._holds.values()))
            or any(c.op == "acquire" and c.name == name for c in list(self._pending.values()))
        )

    def complete_given_up(self, now: int) -> None:
        """Abandons the calls and releases the entries that were given up.

        A grant to an abandoned call, now or later, is released.
        Idempotent: if this is interrupted, it is called again.
        """
        while self.given_up:
            item = self.given_up[0]
            if isinstance(item, Call):
                self._abandon(item, now)
            elif not item.released:
                self.release_entry(item.hold, now, entry=item)
            del self.given_up[0]

    def _abandon(self, call: Call[Any], now: int) -> None:
        if call.done:
            self._undo_abandoned(call, now)
        elif call.id not in self._pending:
            call.abandoned, call.state = True, CallState.DONE  # it was never submitted
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

    def _undo_abandoned(self, call: Call[Any], now: int) -> None:
        """Releases the grant to call, if there is one, and sends the acquires that its owner submitted since."""
        if call.hold is not None:
            self.release_entry(call.hold, now, call=call)
        key = call.owner or -call.id
        if self.unanswered_cancels.get(key) is call:
            for waiting in self._deferred.get(key, ()):
                if waiting.state is CallState.WAITING:
                    self._queue_call(waiting, waiting.id, now)
            self._deferred.pop(key, None)
            self.unanswered_cancels.pop(key, None)

    # --- Holds ---

    def deadline(self, hold: Hold) -> int:
        """Until when the holder may believe in hold: the largest deadline received, or the end of its max_hold."""
        deadline = self._lease_deadline_of(hold)
        return min(deadline, hold.max_hold_end) if hold.max_hold_end else deadline

    def _lease_deadline_of(self, hold: Hold) -> int:
        """The deadline of hold without regard to its max_hold."""
        deadline = hold.own_deadline
        if not hold.fixed_lease and hold.lease_events_seen != self._lease_events:
            deadline = max(deadline, self._lease_deadline)
        return deadline

    def update_lost(self, hold: Hold, read_at: int) -> str:
        """Marks hold as LOST if its deadline has passed. Returns the reason of the loss, "" if it is not LOST.

        read_at: everything that had arrived at this time has been processed. A deadline that has passed since then
        does not count yet: a lease event with a later one may have arrived.
        """
        reason = self.loss_at(hold, read_at)
        if reason and not hold.lost_reason:
            self._mark_lost(hold, reason)
        return reason

    def loss_at(self, hold: Hold, now: int) -> str:
        """The reason of the loss of hold, as far as it is known at now, without a change; "": it is not LOST."""
        # Without max_hold, no deadline is before the one of the grants.
        if (now < hold.own_deadline and not hold.max_hold_end) or hold.lost_reason or not hold.entries:
            return hold.lost_reason
        if now < self.deadline(hold):
            return ""
        return "max_hold" if hold.max_hold_end and now >= hold.max_hold_end else "expired"

    def release_entry(self, hold: Hold, now: int, *, entry: Entry | None = None, call: Call[Any] | None = None) -> None:
        """Releases entry; or the grant to call, which the caller never received."""
        known = hold.epoch == self._epoch
        serving = self.stage is SERVING
        number = hold.number
        frame = protocol.release(number) if known and (serving or self.stage is CLAIMING) else b""
        if known and not serving and self.stage is not ENDED:
            # The sidecar may have renewed it until the connection ended, and the lease event did not arrive.
            self._note_unreleased(max(self.deadline(hold), now + self._watchdog_lease_ns) + self._watchdog_lease_ns)
        released = entry or _UNUSED
        granted = call or _UNUSED
        entries = hold.entries - 1
        out = self.unsent if serving else self._releases_after_claims
        queued = self._queued_bytes + (len(frame) if serving else 0)
        last_release = queued if serving and known else self._last_release_end
        ends = entries == 0 and self._holds.get(number) is hold
        holds = self._holds if ends else {number: hold}
        live = self.live_holds - (entries == 0 and not hold.lost_reason)
        was_lost = bool(hold.lost_reason)
        released_names = [hold.name]
        # Commit:
        self.unsent_releases += released_names
        released.was_lost = was_lost
        released.released = True
        granted.hold = None
        hold.entries = entries
        self._queued_bytes = queued
        out += frame
        self._last_release_end = last_release
        del holds[number]
        self.live_holds = live

    def _mark_lost(self, hold: Hold, reason: str) -> None:
        record = _loss_record(hold, reason)
        # Commit:
        hold.lost_reason = reason
        self.live_holds -= 1
        self.lost_holds += [hold]
        self.log += [record]

    def _lose_all(self) -> None:
        """The sidecar releases the locks of this session, because this process ends it."""
        for hold in self._holds.values():
            hold.epoch = NO_EPOCH
            if not hold.lost_reason:
                self._mark_lost(hold, "closed")
        self._holds = {}

    def latest_deadline(self) -> int:
        """The latest deadline of all holds that are neither RELEASED nor LOST; 0 if there are none."""
        return max((self.deadline(h) for h in self._holds.values() if not h.lost_reason), default=0)

    # --- Received frames ---

    def on_data(self, data: bytes, now: int) -> None:
        self.received.append(data)
        self.process(now)

    def has_work(self) -> bool:
        """Whether there is something to process, or done calls whose callers the I/O layer has to wake."""
        return bool(self.done_calls or self.received or self.given_up) or self._processed < len(self._buffer)

    def process(self, now: int) -> None:
        """Processes what was received. A violation of the protocol ends the session.

        If this is interrupted, the next call continues at the same frame.
        """
        try:
            if self.given_up:
                self.complete_given_up(now)
            while self.stage > DISCONNECTED and (self.received or self._processed < len(self._buffer)):
                if self.received:
                    received = b"".join((self._buffer[self._processed :], *self.received))
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
                if self.given_up:
                    self.complete_given_up(now)
        except ProtocolError as e:
            if self.stage is Stage.GREETING and not self._ticket:
                why = f"the process that listens on {self.path} does not answer like a sidecar: {e}. Is it locksidecar?"
                self.fail(why, ProtocolError)
            else:
                self.fail(f"the sidecar at {self.path} broke the protocol: {e}.", ProtocolError)
        except Unsupported as e:
            self.fail(str(e), Unsupported)

    def _on_frame(self, body: bytes, now: int) -> None:
        # The fast path. A frame that looks like a grant, but answers no such acquire, takes the strict path below.
        if (grant := protocol.grant(body)) is not None:
            id, parse, answer = grant
            call = self._pending.get(id)
            if call is not None and call.parse is parse and call.state is QUEUED:
                self._on_grant(call, answer)
                return
        match reply := protocol.decode(body):
            case protocol.Answer(id=id, fields=fields):
                if (handler := self._answer_handlers.get(id)) is not None:
                    handler(fields, now)
                    return
                if self._bye is not None:
                    return  # no caller waits for anything but bye
                # Everything is checked before it is committed: if the session fails, a call that is still pending gets
                # the error.
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
                    # The sidecar is stopping, or is full just now. The session can still be resumed.
                    if self._ticket and (code == "unavailable" or (code == "limit" and self.stage is Stage.GREETING)):
                        self.on_disconnected(now)
                        return
                    error = _ERRORS_BY_CODE.get(code, LocksidecarError)
                    self.fail(f"the sidecar at {self.path} refused the session: {msg or code}.", error)
                    return
                if self._bye is not None:
                    return
                call = self._queued_call(id)
                if isinstance(call, Downgrade) and code == "bad_request":  # it was carried out before
                    self._on_answer(call, protocol.DowngradeOK(0), None)
                    return
                error_of_call = self._refusal_error(call, reply)
                if isinstance(error_of_call, Deadlock) and self._is_held_by_owner_of(call):
                    why = f"{error_of_call}. rlock() makes a lock that its holder may acquire again"
                    if call.mode:
                        why = f"{error_of_call}. A shared hold cannot become exclusive: release it first"
                    error_of_call = Deadlock(why, code=code)
                self._on_answer(call, None, error_of_call)
            case protocol.LostEvent(hold=number, reason=reason):
                self._on_lost(number, reason)
            case protocol.LeaseEvent(deadline_ns=deadline):
                self._on_lease(deadline)
            case protocol.UnknownEvent():
                pass

    def _on_connection_error(self, error: protocol.Refusal, now: int) -> None:
        match error.code:
            case "unavailable":  # the sidecar is stopping
                self.on_disconnected(now)
            case "limit" | "no_hello" if self._ticket and self.stage < Stage.SERVING:
                # The sidecar is full just now, or this client was too slow. The session can still be resumed.
                self.on_disconnected(now)
            case "limit" | "denied":
                self.fail(f"the sidecar at {self.path} refused the session: {error.msg}.", _ERRORS_BY_CODE[error.code])
            case code:
                self.fail(f"the sidecar at {self.path} ended the connection: {error.msg} ({code}).", ProtocolError)

    def _queued_call(self, id: int) -> Call[Any]:
        call = self._pending.get(id)
        if call is None or call.state is not CallState.QUEUED:
            raise ProtocolError(f"it answered request {id}, which is not waiting for an answer")
        return call

    def _refusal_error(self, call: Call[Any], refusal: protocol.Refusal) -> LocksidecarError:
        error, why = _ERRORS_BY_CODE.get(refusal.code, LocksidecarError), refusal.msg or refusal.code
        if error is Unsupported and isinstance(call, Confirm):
            why = "this sidecar is older than this client and does not confirm releases: upgrade it"
        elif error is Unsupported and (call.permits or call.mode):
            why = (
                f"the sidecar at {self.path} (version {self._sidecar_version}) is older than this client (version "
                f"{__version__}) and has no {'semaphores' if call.permits else 'read/write locks'}: upgrade it"
            )
        if not isinstance(call, Confirm):
            why = f"{call.op} {call.name!r}: {why}" if call.name else f"{call.op}: {why}"
        return error(why, code=refusal.code)

    def _is_held_by_owner_of(self, call: Call[Any]) -> bool:
        return any(h.name == call.name and h.owner == call.owner and not h.lost_reason for h in self._holds.values())

    def _on_answer(self, call: Call[Any], answer: object, error: LocksidecarError | None) -> None:
        """call is answered, and the answer is no grant."""
        acknowledged = max(self._acknowledged, call.end_offset)
        given_up = [call] if call.abandoned else []
        # Commit:
        call.answer = answer
        call.error = error
        call.state = CallState.DONE
        del self._pending[call.id]
        self.done_calls += [call]
        self.given_up += given_up
        self._acknowledged = acknowledged
        self._processed = self._frame_end

    def _on_grant(self, call: Call[Any], grant: protocol.AcquireOK) -> None:
        acknowledged = max(self._acknowledged, call.end_offset)
        given_up = [call] if call.abandoned else []
        hold = self._holds.get(grant.hold)
        deadline = grant.deadline_ns
        live = self.live_holds
        mode = _NO_MODE if not call.mode else HoldMode.SHARED if grant.shared else HoldMode.EXCLUSIVE
        # A LOST hold stays LOST. If the sidecar still has it, the new entry gets a Hold of its own.
        if hold is None or hold.lost_reason:
            # The grant re-entered a hold whose other entries were released here in the meantime. A grant does not say
            # whether the lease is fixed, so no lease event may extend this hold.
            leased = call.lease_ns > 0 or grant.count > 1 if hold is None else hold.fixed_lease
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
                call.owner,
                call.permits,
            )
            live += 1
        else:
            deadline = max(self.deadline(hold), deadline)
            mode = max(hold.mode, mode)
        entries = hold.entries + 1
        grants = self.grants + 1
        # Commit:
        self._holds[hold.number] = hold
        self.live_holds = live
        hold.own_deadline = deadline
        hold.lease_events_seen = self._lease_events
        hold.entries = entries
        hold.mode = mode
        self.grants = grants
        call.hold = hold
        call.answer = grant
        call.state = DONE
        del self._pending[call.id]
        self.done_calls += [call]
        self.given_up += given_up
        self._acknowledged = acknowledged
        self._processed = self._frame_end

    def _on_lost(self, number: int, reason: str) -> None:
        hold = self._holds.get(number)
        if hold is None:  # released here while the event was in flight
            return
        lost = [] if hold.lost_reason else [hold]
        live = self.live_holds - len(lost)
        why = hold.lost_reason or reason
        log = [_loss_record(hold, reason)] if lost else []
        # Commit:
        hold.epoch = NO_EPOCH
        hold.lost_reason = why
        self.live_holds = live
        self.lost_holds += lost
        self.log += log
        del self._holds[number]
        self._processed = self._frame_end

    def _on_lease(self, deadline: int) -> None:
        if deadline < self._lease_deadline:
            # Deadlines never move back: keep the larger one of the earlier events in each hold.
            for hold in self._holds.values():
                hold.own_deadline = self.deadline(hold)
                hold.lease_events_seen = self._lease_events
        # Commit:
        self._lease_events += 1
        self._lease_deadline = deadline
        self._processed = self._frame_end

    def end_watch(self, call: Call[Any]) -> None:
        """call is a watch_call()."""
        self._mark_done(call)

    def _mark_done(self, call: Call[Any]) -> None:
        # Commit:
        call.state = CallState.DONE
        self.done_calls += [call]
        self._pending.pop(call.id, None)

    # --- The end ---

    def close(self, now: int) -> Call[bool]:
        """Ends the session: every hold is lost, every pending call fails, and the sidecar releases the locks.

        Bye is sent as soon as possible. The call that is returned is DONE when bye is answered or not needed.

        Idempotent: if this is interrupted, it is called again.
        """
        if self._bye is None:
            if self.live_holds or self._pending or self._last_release_end > self._acknowledged:
                self._note_unreleased(
                    max(self.latest_deadline(), now + self._watchdog_lease_ns) + self._watchdog_lease_ns
                )
            self._lose_all()
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
        """Ends the session here: the sidecar knows that it has ended, or does not have to."""
        self.unreleased_until = 0
        self.stage = Stage.ENDED
        if self._bye is not None and not self._bye.done:
            self._bye.answer = True
            self._mark_done(self._bye)

    def fail(self, why: str, error: type[LocksidecarError] = Unavailable) -> None:
        """Ends the session because of an error. Pending calls fail; holds stay valid until their deadlines."""
        if self.failure is None:
            self.failure = error(why)
        self.stage = Stage.ENDED
        self.fail_pending()

    def fail_pending(self) -> None:
        """Fails all pending calls of a session that has failed or was closed.

        Idempotent: if this is interrupted, it is called again.
        """
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
                call.error = _make_error(error, call.with_outcome(why, "was not carried out"), False)
            elif call.op == "acquire":
                call.error = _make_error(error, f"{why} If this acquire was granted, that ended with the session", True)
            else:
                call.error = _make_error(error, call.with_outcome(why, "may have been carried out"), True)
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
    """Takes the place of the entry, or of the call, that a release does not have, so that its commit has no branch.

    What is written to it is never read.
    """

    released: bool = False
    was_lost: bool = False
    hold: Hold | None = None


_UNUSED: Final = _Unused()


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


def _unknown_hold(call: Downgrade) -> LocksidecarError:
    return Unavailable(
        f"downgrade {call.name!r}: the sidecar was restarted without its state, and does not know the hold, which "
        "excludes others until its deadline"
    )


def _release_unknown() -> LocksidecarError:
    return LocksidecarError("the sidecar was restarted without its state, and does not know of the release")


class Entry:
    """One entry into one hold, from its grant to its release.

    An Entry refers to one Hold for all its life, so a late release can never free a newer hold.

    read_at is as in Session.update_lost(). commits: whether a loss that is found is recorded. It is not in a frame that
    has interrupted a change of the session: this frame only reads the last known state.
    """

    __slots__ = ("given_up", "hold", "released", "session", "was_lost")

    def __init__(self, session: Session, hold: Hold) -> None:
        self.session: Session = session
        self.hold: Hold = hold
        self.released: bool = False
        self.was_lost: bool = False  # its hold was LOST when it was released
        # Its release was interrupted. Session.complete_given_up() completes it before the session sends a request, so
        # for its holder it is released already.
        self.given_up: bool = False

    @property
    def has_been_released(self) -> bool:
        return self.released or self.given_up

    @property
    def title(self) -> str:
        return self.hold.title

    def is_held(self) -> bool:
        """Whether it is known to be held now, without a look at what has arrived."""
        session, hold = self.session, self.hold
        if self.has_been_released or session.inherited or session._holds.get(hold.number) is not hold:
            return False
        return not session.loss_at(hold, clock_of(session.path)())

    def has_lost_its_hold(self) -> bool:
        """Whether its hold was LOST before it was released."""
        return self.was_lost if self.released else bool(self.hold.lost_reason)

    def check(self, read_at: int, commits: bool = True) -> None:
        self._require_held("is not held any more: it was released")
        if reason := self._loss(read_at, commits):
            raise self.loss_error(reason)

    def require_unreleased(self) -> None:
        self._require_held("was released before")

    def release(self, read_at: int) -> None:
        if self.released or self.given_up or self.session.inherited:
            self.require_unreleased()
        reason = self.session.update_lost(self.hold, read_at)
        self.session.release_entry(self.hold, read_at, entry=self)
        _dropped.release_was_called(self)
        if reason:
            raise self.loss_error(reason)

    def release_confirmed(self, call: Confirm, read_at: int) -> None:
        """Releases the entry, then submits call, the request for the confirmation.

        If this is interrupted, released says whether the entry was released.
        """
        self.release(read_at)
        self.session.submit_confirm(call, read_at)

    def lost(self, read_at: int, commits: bool = True) -> str:
        if self.session.inherited:
            self._require_held("")
        return self._loss(read_at, commits)

    def remaining(self, read_at: int, commits: bool = True) -> int:
        """Nanoseconds from read_at until the deadline; 0 if the lock is not held."""
        if self.has_been_released or self.session.inherited or self._loss(read_at, commits):
            return 0
        return self.session.deadline(self.hold) - read_at

    def deadline(self, read_at: int, commits: bool = True) -> int:
        self._loss(read_at, commits)
        return self.session.deadline(self.hold)

    def _loss(self, read_at: int, commits: bool) -> str:
        return (self.session.update_lost if commits else self.session.loss_at)(self.hold, read_at)

    def has_ended(self) -> bool:
        """Whether the entry is released or its hold LOST, or both belong to the parent of this process."""
        return self.has_been_released or self.session.inherited or bool(self.hold.lost_reason)

    def may_be_shared(self) -> bool:
        return self.hold.mode >= HoldMode.DOWNGRADING

    def begin_downgrade(self) -> Downgrade | None:
        """The request for a downgrade of its hold, which is held; None: it is shared already."""
        hold = self.hold
        if hold.mode is HoldMode.NONE:
            raise BadRequest(f"{self.title} is no read/write lock: acquire it by rwlock(), with write()")
        if hold.mode is HoldMode.SHARED:
            return None
        call = downgrade_call(hold)
        hold.mode = HoldMode.DOWNGRADING  # from now on it is not known when others read
        return call

    def end_downgrade(self, call: Downgrade) -> None:
        """call is DONE. Raises its error."""
        call.result()
        self.hold.mode = HoldMode.SHARED

    def _require_held(self, what: str) -> None:
        if self.session.inherited:
            raise NotHeld(f"{self.title} is the parent process's: nothing is inherited by fork")
        if self.has_been_released:
            raise NotHeld(f"{self.title} {what}")

    def loss_error(self, reason: str) -> LockLost:
        what = _LOSS_TEXTS.get(reason, reason)
        known = cast(LossReason, reason)
        return LockLost(f"{self.title} was lost: {what}", name=self.hold.name, reason=known)


def _loss_record(hold: Hold, reason: str) -> _log.Record:
    level = _log.INFO if reason == "closed" else _log.WARNING
    what = (
        "the hold of permits of %r (token %d) was lost: %s" if hold.permits else "the lock %r (token %d) was lost: %s"
    )
    return level, what, (hold.name, hold.token, _LOSS_TEXTS.get(reason, reason))


_LOSS_TEXTS: Final = {
    "expired": "its deadline passed (expired)",
    "deleted": "its key vanished from Redis (deleted)",
    "stolen": "another owner's field is in its key in Redis (stolen)",
    "forced": "an operator ended it (forced)",
    "max_hold": "its max_hold passed (max_hold)",
    "forgotten": "the sidecar was restarted and knows nothing of it (forgotten)",
    "closed": "this process closed the client, or its connection (closed)",
}


def may_have(lock: protocol.LockInfo, number: int) -> bool:
    """Whether a hold may be one of those of a lock. Of a semaphore with many, the sidecar names some only."""
    named = [holder.hold for holder in lock.holders]
    return number == lock.hold or number in named or lock.held > len(named)

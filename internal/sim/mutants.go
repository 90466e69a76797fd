package sim

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Mutants are all mutants.
var Mutants = []Mutant{
	// Deadlines.
	{
		Name:     "deadline-counts-from-reply",
		Rule:     "a deadline counts from when the operation was sent, not from when its reply came",
		Detected: `is believed in until`,
		mutate: func(t *mutantTable) {
			t.onResult = func(now int64, r *redisop.Result) { r.Sent = now }
		},
	},
	{
		Name:     "deadline-without-drift",
		Rule:     "a deadline allows for clocks that run differently",
		Detected: `is believed in until`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) { r.Sent += t.lease()/100 + 2*ms }
		},
	},
	{
		Name:     "grant-without-redis",
		Rule:     "no owner is granted a lock before Redis has it",
		Detected: `is believed in until|two owners|was used before or never drawn`,
		mutate: func(t *mutantTable) {
			t.onResult = func(now int64, r *redisop.Result) {
				if r.Kind == redisop.Take && r.Outcome == redisop.HeldByOther {
					*r = redisop.Result{Kind: r.Kind, Name: r.Name, Sent: r.Sent, Token: uint64(now)}
				}
			}
		},
	},
	{
		Name:     "failed-renewal-counts",
		Rule:     "a renewal that failed extends no deadline",
		Detected: `is believed in until|a lease event comes`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) {
				if r.Kind == redisop.Renew && r.Outcome != redisop.Done {
					*r = redisop.Result{Kind: r.Kind, Name: r.Name, Sent: r.Sent}
				}
			}
		},
	},
	{
		Name:     "drop-not-waited-for-confirmed",
		Rule:     "a release that was sent before the confirm does not count for it",
		Detected: `a replica has`,
		mutate: func(t *mutantTable) {
			t.configure(func(cfg *locktable.Config) { cfg.Durable = false })
		},
	},
	{
		Name:     "lease-event-deadline-late",
		Rule:     "a lease event holds for every watchdog hold of the session",
		Detected: `is believed in until`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Lease {
					e.Deadline += t.lease() / 8
				}
			})
		},
	},
	{
		Name:     "no-lease-events",
		Rule:     "a lease event reaches the client",
		Detected: `was not notified that hold|for the wrong reason|though nothing kept its host from renewing|a lease event comes|the answer is that hold \d+ is not held`,
		mutate:   func(t *mutantTable) { t.onEffect = without(is(locktable.Lease)) },
	},
	{
		Name:     "fixed-lease-renewed",
		Rule:     "a fixed lease is not renewed",
		Detected: `is granted for longer than that`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.LeaseMS = 0 })
		},
	},
	{
		Name:     "no-max-hold",
		Rule:     "the end of max_hold is sent with the grant",
		Detected: `as its end; its max_hold ends at`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.MaxHoldMS = 0 })
		},
	},
	{
		Name:     "no-max-hold-losses",
		Rule:     "max_hold ends a hold",
		Detected: `has outlived its max_hold|two owners`,
		mutate:   func(t *mutantTable) { t.onEffect = without(isLost(protocol.MaxHold)) },
	},
	{
		Name:     "timers-late",
		Rule:     "what is due happens",
		Detected: `was not notified that hold|has waited|has outlived|though nothing kept|the answer is that hold \d+ is not held|lost wake-up|is believed in until`,
		mutate:   func(t *mutantTable) { t.lateBy = sec },
	},

	// The ends of holds.
	{
		Name:     "list-releases",
		Rule:     "listing locks changes nothing",
		Detected: `is given up early|is replaced while it lasts|the answer is that hold \d+ is not held|does not show hold|two owners`,
		mutate: func(t *mutantTable) {
			var holder locktable.SessionID
			var hold uint64
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Granted {
					holder, hold = e.Session, e.Hold
				}
			})
			t.onList = func(now int64) { t.Table.Release(now, holder, protocol.Release{Hold: hold}) }
		},
	},
	{
		Name:     "renewal-drops",
		Rule:     "a hold is not given up while it lasts",
		Detected: `is given up early`,
		mutate: func(t *mutantTable) {
			dropped := make(map[string]bool)
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Redis && e.Op.Kind == redisop.Renew {
					e.Op.Kind = redisop.Drop
					dropped[e.Op.Name] = true
				}
			})
			t.onResult = func(_ int64, r *redisop.Result) {
				if dropped[r.Name] {
					delete(dropped, r.Name)
					r.Kind = redisop.Renew
				}
			}
		},
	},
	{
		Name:     "no-crash-delay",
		Rule:     "crash_delay keeps the lock",
		Detected: `is given up early|is replaced while it lasts|two owners|does not show hold`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.CrashDelayMS = 0 })
		},
	},
	{
		Name:     "no-keep",
		Rule:     "a lock is kept for as long as was asked for",
		Detected: `is kept for \d+ ms after its grant`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.KeepMS /= 2 })
		},
	},
	{
		Name:     "keep-not-in-redis",
		Rule:     "Redis has a lock for its whole keep, also if its host dies",
		Detected: `is given less than its keep`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Redis && e.Op.Kind == redisop.Renew {
					e.Op.LeaseMS = min(e.Op.LeaseMS, uint32(t.lease()/ms))
				}
			})
		},
	},
	{
		Name:     "detach-closes",
		Rule:     "a client that misbehaves but lives does not lose its locks",
		Detected: `is given up early|is replaced while it lasts|two owners`,
		mutate:   func(t *mutantTable) { t.onDetach = t.Table.Close },
	},
	{
		Name:     "close-ignored",
		Rule:     "a dead client's locks are released",
		Detected: `has forgotten that|does nothing about|two owners|and it still has|nothing fails any more|is closed|hold \d+, which has ended`,
		mutate:   func(t *mutantTable) { t.onClose = func(int64, locktable.SessionID) {} },
	},
	{
		Name:     "loss-twice",
		Rule:     "a client is notified of a loss once",
		Detected: `is notified that it lost hold \d+, which it does not have`,
		mutate:   func(t *mutantTable) { t.onEffect = twice(is(locktable.Lost)) },
	},
	{
		Name:     "no-losses",
		Rule:     "a client is notified of a loss",
		Detected: `was not notified|has outlived|not notified of its loss|two owners|is given up early|is replaced while it lasts|is believed in until`,
		mutate:   func(t *mutantTable) { t.onEffect = without(is(locktable.Lost)) },
	},
	{
		Name:     "loss-stolen",
		Rule:     "a client is notified of the reason of a loss",
		Detected: `for the wrong reason|does not say what was found`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Lost {
					e.Reason = protocol.Stolen
				}
			})
		},
	},

	// Tokens and hold numbers.
	{
		Name:     "token-reused",
		Rule:     "every hold has a token of its own",
		Detected: `token \d+ (was used before|after)`,
		mutate: func(t *mutantTable) {
			last := make(map[string]uint64)
			names := make(map[uint64]string) // by session<<32 + request
			t.onAcquire = func(_ int64, s locktable.SessionID, req *protocol.Acquire) bool {
				names[uint64(s)<<32+req.ID] = req.Name
				return true
			}
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Granted && e.Count == 1 {
					name := names[uint64(e.Session)<<32+e.ID]
					if token := last[name]; token != 0 {
						e.Token = token
					}
					last[name] = e.Token
				}
			})
		},
	},

	// A Cluster. tests/mutants has the rules that a mutant in front of the table cannot break.
	{
		Name:     "moves-ignored",
		Rule:     "a lock is asked for at the shard that has its slot now",
		Detected: `and was told that shard \d has the lock`,
		mutate: func(t *mutantTable) {
			isRouted := false
			t.onRoute = func(now int64, ranges []redisop.SlotRange) {
				if !isRouted {
					t.Table.Route(now, ranges)
				}
				isRouted = true
			}
		},
	},
	{
		Name:     "subscription-not-moved",
		Rule:     "the subscription of a lock moves with its slot",
		Detected: `is subscribed at shard \d, and was told that shard \d has the lock`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(*locktable.Effect) {})
			t.onRoute = func(now int64, ranges []redisop.SlotRange) {
				t.added = append(t.added, t.Table.Effects()...)
				t.Table.Route(now, ranges)
				for _, e := range t.Table.Effects() {
					if e.Kind != locktable.Subscribe && e.Kind != locktable.Unsubscribe {
						t.added = append(t.added, e)
					}
				}
			}
		},
	},
	{
		Name:     "all-shards-down-with-one",
		Rule:     "a shard that is down keeps no lock of another from being asked for",
		Detected: `lost wake-up|though nothing kept|and still`,
		From:     183,
		mutate: func(t *mutantTable) {
			t.onDown = func(now int64, s redisop.Shard, why string) {
				t.Table.Down(now, s, why)
				for other := redisop.Shard(1); other < worldNodes; other++ {
					if s != 0 && other != s {
						t.Table.Down(now, other, why)
					}
				}
			}
		},
	},
	{
		Name:           "place-by-clock-alone",
		Rule:           "a ticket comes behind all others, also if Redis's clock was set back",
		Detected:       `is number \d+ of \d+ in the queue`,
		From:           76,
		arrivesByClock: true,
	},
	{
		// The alternative of docs/decisions/0051-clock-set-back.md.
		Name:             "late-place-lowered",
		Rule:             "a ticket comes behind all others, also before their hosts have asked again after Redis's clock was set back",
		Detected:         `is number \d+ of \d+ in the queue`,
		From:             207,
		arrivesByClock:   true,
		lowersLateScores: true,
	},
	{
		Name:     "pipelined-take-reuses-number",
		Rule:     "a Take after a Drop has a number of its own",
		Detected: `the Drop before it would undo`,
		mutate: func(t *mutantTable) {
			pending := make(map[string]uint64) // numbers of Drops
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind != locktable.Redis {
					return
				}
				switch num, ok := pending[e.Op.Name]; {
				case e.Op.Kind == redisop.Drop:
					pending[e.Op.Name] = e.Op.HoldID
				case e.Op.Kind == redisop.Take && ok:
					e.Op.HoldID = num
				}
			})
			t.onResult = func(_ int64, r *redisop.Result) {
				if r.Kind == redisop.Drop {
					delete(pending, r.Name)
				}
			}
		},
	},

	// Waiting.
	{
		Name:     "no-messages",
		Rule:     "a host finds that a lock is free",
		Detected: `lost wake-up`,
		mutate: func(t *mutantTable) {
			t.onMessage = func(int64, *redisop.Message) bool { return false }
			t.onResult = func(_ int64, r *redisop.Result) {
				if r.Outcome == redisop.HeldByOther {
					r.TTLMS = 1 << 40
				}
			}
		},
	},
	{
		Name:     "wait-doubled",
		Rule:     "a wait ends in time",
		Detected: `has waited .* longer than it would`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.WaitMS *= 1 + int64(btoi(req.WaitMS > 0)) })
		},
	},
	{
		Name:     "wait-0-waits-for-silent-redis",
		Rule:     "wait 0 does not wait for a Redis that does not reply",
		Detected: `has waited .* longer than it would`,
		mutate: func(t *mutantTable) {
			t.configure(func(c *locktable.Config) { c.TryWithin = time.Hour })
		},
	},
	{
		Name:     "wait-0-refused-at-once",
		Rule:     "Redis has time to reply to an acquire with wait 0",
		Detected: `was unavailable, though Redis replies`,
		mutate: func(t *mutantTable) {
			t.configure(func(c *locktable.Config) { c.TryWithin = time.Nanosecond })
		},
	},
	{
		Name:     "silence-is-timeout",
		Rule:     "a client is not told that the lock is taken if Redis did not reply",
		Detected: `timed out, and (no other request was in its way|Redis has been silent)`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Refusal && strings.HasPrefix(e.Msg, "Redis has not answered") {
					e.Code = protocol.Timeout
				}
			})
		},
	},
	{
		Name:     "wait-0-waits",
		Rule:     "wait 0 does not wait",
		Detected: `has wait 0, and waits`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) {
				if req.WaitMS == 0 {
					req.WaitMS = 1
				}
			})
		},
	},
	{
		Name:     "no-deadlocks",
		Rule:     "an acquire that closes a cycle is refused",
		Detected: `closes a cycle, and waits`,
		mutate: func(t *mutantTable) {
			t.onEffect = without(func(e *locktable.Effect) bool {
				return e.Kind == locktable.Refusal && e.Code == protocol.Deadlock
			})
		},
	},
	{
		Name:     "no-re-entry",
		Rule:     "an owner re-enters",
		Detected: `is a re-entry, and waits`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.Owner = 0 })
		},
	},
	{
		Name:     "always-re-entry",
		Rule:     "an owner re-enters only if it wants to",
		Detected: `two owners`,
		mutate: func(t *mutantTable) {
			t.onAcquire = changeRequest(func(req *protocol.Acquire) { req.NotReentrant = false })
		},
	},
	{
		Name:     "overtaking",
		Rule:     "waiters get a lock in the order of their arrival",
		Detected: `out of turn`,
		mutate:   overtake,
	},
	{
		Name:     "released-twice",
		Rule:     "every request is answered once",
		Detected: `which is not waiting for that`,
		mutate:   func(t *mutantTable) { t.onEffect = twice(is(locktable.Released)) },
	},
	{
		Name:     "no-canceled",
		Rule:     "every request is answered",
		Detected: `is not answered`,
		mutate:   func(t *mutantTable) { t.onEffect = without(is(locktable.Canceled)) },
	},

	// What Redis is asked for.
	{
		Name:     "pipelines-while-others-wait",
		Rule:     "a lock is not taken again at once while other hosts are known to wait",
		Detected: `takes the lock that it releases`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) { r.Listeners.N = 0 }
		},
	},
	{
		Name:     "hands-over-while-others-wait",
		Rule:     "a lock does not stay on one host while others wait",
		Detected: `handed the lock over \d+ times`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) { r.Listeners = redisop.CountedListeners(0) }
		},
	},
	{
		Name:     "unknown-is-unsent",
		Rule:     "an operation with an unknown outcome may have been executed",
		Detected: `has forgotten that Redis has|does nothing about|is believed in until`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) {
				if r.Outcome == redisop.Unknown {
					r.Outcome = redisop.NotSent
				}
			}
		},
	},
	{
		Name:     "count-stays-1",
		Rule:     "Redis has the entries of a hold",
		Detected: `does not update Redis, which has`,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) { e.Op.Count = min(e.Op.Count, 1) })
		},
	},
	{
		Name:     "down-ignored",
		Rule:     "no operation is issued while Redis is down",
		Detected: `issues an operation while Redis is down`,
		mutate:   func(t *mutantTable) { t.onDown = func(int64, redisop.Shard, string) {} },
	},
	{
		Name:     "no-unsubscribe",
		Rule:     "subscriptions end",
		Detected: `is still subscribed|subscribes twice`,
		mutate:   func(t *mutantTable) { t.onEffect = without(is(locktable.Unsubscribe)) },
	},

	// The queue of the sidecars. Mutants that use a number or a ticket again, or accept the
	// transfer of a dead ticket, need so many faults to meet that no seed in reach detects them:
	// tests/mutants breaks these rules.
	{
		Name:     "transfer-counts-from-message",
		Rule:     "the deadline of a transfer counts from the last question to which Redis answered that the ticket stands",
		Detected: `is believed in until`,
		mutate: func(t *mutantTable) {
			asked := make(map[string]int64)
			t.onResult = func(_ int64, r *redisop.Result) {
				if r.Ticket != 0 {
					asked[r.Name] = r.Sent
				}
			}
			t.onMessage = func(now int64, m *redisop.Message) bool {
				if at := asked[m.Name]; m.Kind == redisop.Transferred && at != 0 {
					m.LeaseMS += uint32((now - at) / ms)
				}
				return true
			}
		},
	},
	{
		Name:     "transfer-with-token-of-before",
		Rule:     "a transfer has the tokens that were drawn for it",
		Detected: `was used before or never drawn`,
		mutate: func(t *mutantTable) {
			t.onMessage = func(_ int64, m *redisop.Message) bool {
				m.Tokens++
				return true
			}
		},
	},
	{
		Name:     "transfer-ignored",
		Rule:     "a host that is told of a transfer which it does not accept asks Redis",
		Detected: `has forgotten that Redis has|does nothing about`,
		mutate:   func(t *mutantTable) { t.onMessage = ignore(redisop.Transferred) },
	},
	{
		Name:     "recall-ignored",
		Rule:     "a recall limits the turn of the host that has the lock",
		Detected: `handed the lock over \d+ times in .*, and \d+ sidecars wait`,
		mutate:   func(t *mutantTable) { t.onMessage = ignore(redisop.Recalled) },
	},
	{
		Name:     "freed-ignored",
		Rule:     "the first of the queue asks for a lock that was left free",
		Detected: `lost wake-up`,
		mutate:   func(t *mutantTable) { t.onMessage = ignore(redisop.Freed) },
	},
	{
		Name:     "first-of-the-queue-forgotten",
		Rule:     "a host that has the lock keeps it only for acquires that arrived before the first ticket",
		Detected: `out of order`,
		From:     1586,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) { r.FirstArrived = 0 }
		},
	},
	{
		Name:     "arrival-not-kept",
		Rule:     "the ticket of a host stands where its first acquire arrived",
		Detected: `out of order`,
		From:     1729,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Kind == locktable.Redis {
					e.Op.Arrived = 0
				}
			})
		},
	},
	{
		Name:     "first-ticket-does-not-ask",
		Rule:     "a host asks again when its ticket is the first of a lock that a program has",
		Detected: `is the first since .* and the host is not subscribed`,
		From:     950,
		mutate: func(t *mutantTable) {
			t.onMessage = func(_ int64, m *redisop.Message) bool { return m.Kind != redisop.Freed || m.PauseMS > 0 }
		},
	},
	{
		Name:     "waiting-sidecars-forgotten",
		Rule:     "a turn is over when a Take returned that another sidecar waits",
		Detected: `handed the lock over \d+ times in .*, and \d+ sidecars wait`,
		mutate: func(t *mutantTable) {
			t.onResult = func(_ int64, r *redisop.Result) { r.Waiting = 0 }
		},
	},
	{
		Name:     "turn-too-long",
		Rule:     "a turn is no longer than it may be while another sidecar waits",
		Detected: `handed the lock over \d+ times in .*, and \d+ sidecars wait`,
		mutate: func(t *mutantTable) {
			t.configure(func(c *locktable.Config) { c.Contest.Turn = moment.SpanOf(time.Hour) })
		},
	},
	{
		Name:     "never-left-free",
		Rule:     "a lock is left free now and then",
		Detected: `never left it free|takes the lock that it releases`,
		mutate: func(t *mutantTable) {
			t.configure(func(c *locktable.Config) { c.Contest.QuietTime = time.Hour })
		},
	},
	{
		Name:     "pollers-forgotten",
		Rule:     "a lock that a program may poll is left free more often",
		Detected: `never left it free`,
		mutate: func(t *mutantTable) {
			t.configure(func(c *locktable.Config) { c.Contest.PollerTime = time.Hour })
		},
	},
	{
		Name:     "ticket-not-kept",
		Rule:     "a host keeps its place in the queue, and learns of it",
		Detected: `lost wake-up`,
		From:     522,
		mutate: func(t *mutantTable) {
			t.onEffect = change(func(e *locktable.Effect) {
				if e.Op.Kind == redisop.Take {
					e.Op.Ticket = 0
				}
			})
		},
	},

	// The journal.
	{
		Name:     "journal-misses-changes",
		Rule:     "every change of a hold is recorded",
		Detected: `the journal of host \d+ (does not have|has)|records \{`,
		mutate: func(t *mutantTable) {
			records := 0
			t.onPutHold = func(slot uint32) bool {
				records++
				return slot == 0 || records%8 != 0
			}
		},
	},
	{
		Name:     "journal-without-holds",
		Rule:     "every hold is recorded",
		Detected: `does not have hold`,
		mutate:   func(t *mutantTable) { t.onPutHold = func(slot uint32) bool { return slot != 0 } },
	},
	{
		Name:     "journal-always-has-room",
		Rule:     "a lock without room counts until it is recorded or has ended",
		Detected: `does not have hold|has <nil>`,
		mutate:   func(t *mutantTable) { t.onUnstored = func() int { return 0 } },
	},
	{
		Name:     "journal-after-redis",
		Rule:     "a lock is recorded before Redis is asked for it",
		Detected: `is issued, and the journal of host \d+ has`,
		mutate: func(t *mutantTable) {
			t.onPutLock = func(slot uint32) bool { return slot != 0 }
		},
	},
	{
		Name:     "journal-without-larger-number",
		Rule:     "a larger hold number of a lock is recorded before Redis is asked for it",
		Detected: `is issued, and the journal of host \d+ has|records \{.*; its lock is`,
		mutate: func(t *mutantTable) {
			t.onPutLock = func(slot uint32) bool { return slot == 0 }
		},
	},
	{
		Name:     "hold-not-deleted",
		Rule:     "a hold that has ended is deleted from the journal",
		Detected: `frees the slot of a lock before that of hold|records hold \d+ in slot 0, beside hold`,
		mutate:   func(t *mutantTable) { t.onDeleteHold = func() bool { return false } },
	},
	{
		Name:     "slot-not-freed",
		Rule:     "a slot is freed",
		Detected: `records a lock in two slots|its journal still has`,
		mutate:   func(t *mutantTable) { t.onDeleteLock = func() int { return 0 } },
	},
	{
		Name:     "slot-freed-twice",
		Rule:     "a slot is freed once",
		Detected: `frees slot \d+, which it does not have`,
		mutate:   func(t *mutantTable) { t.onDeleteLock = func() int { return 2 } },
	},

	// Restarts.
	{
		Name:     "restored-number-lower",
		Rule:     "hold numbers continue after a restart",
		Detected: `as its last number, after|a first entry with hold`,
		mutate: func(t *mutantTable) {
			t.onRestore = func(m *locktable.Snapshot) { m.LastHoldID /= 2 }
		},
	},
	{
		Name:     "restored-token-other",
		Rule:     "a restored hold has the token that it had",
		Detected: `host \d+ shows`,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.Token++ }) },
	},
	{
		Name:     "restored-count-1",
		Rule:     "a restored hold has the entries that it had",
		Detected: `claims more entries than it has|host \d+ shows`,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.Entries = 1 }) },
	},
	{
		Name:     "restored-deadline-early",
		Rule:     "a restored hold lasts until the deadline that its client was sent",
		Detected: `does not show hold|the journal of host \d+ has`,
		mutate: func(t *mutantTable) {
			t.onRestore = func(m *locktable.Snapshot) {
				for i := range m.Sessions {
					m.Sessions[i].LeaseSent -= t.lease() / 2
				}
				for i := range m.Holds {
					m.Holds[i].Deadline -= t.lease() / 2
				}
			}
		},
	},
	{
		Name:     "restored-deadline-late",
		Rule:     "a restored hold lasts no longer than its client may have been sent",
		Detected: `is believed in until|lease event|does not end`,
		mutate: func(t *mutantTable) {
			t.onRestoredHold(func(h *locktable.HoldRecord) { h.Deadline += t.lease() / 2 })
		},
	},
	{
		Name:     "restored-hold-not-renewed",
		Rule:     "a restored hold is renewed while its client is away",
		Detected: `though nothing kept its host from renewing it|the journal of host \d+ has`,
		mutate: func(t *mutantTable) {
			t.onRestoredHold(func(h *locktable.HoldRecord) {
				if h.Lease == locktable.WatchdogLease {
					h.Lease, h.LeaseMS = locktable.FixedLease, uint32(t.lease()/ms)
				}
			})
		},
	},
	{
		Name:     "restored-without-max-hold",
		Rule:     "a restored hold ends at its max_hold",
		Detected: `has outlived its max_hold|the journal of host \d+ has`,
		From:     186,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.End = 0 }) },
	},
	{
		Name:     "restored-without-crash-delay",
		Rule:     "a restored hold has its crash delay",
		Detected: `is given up early|is replaced while it lasts|does not show hold|two owners`,
		From:     71,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.CrashDelayMS = 0 }) },
	},
	{
		Name:     "restored-without-keep",
		Rule:     "a restored hold has its keep",
		Detected: `is given up early|is replaced while it lasts|does not show hold|two owners|is given less than its keep|the journal of host \d+ has`,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.KeepUntil = 0 }) },
	},
	{
		Name:     "restored-without-doubt",
		Rule:     "a restored hold that Redis may have lost is asserted",
		Detected: `and not asserted again`,
		From:     351,
		mutate:   func(t *mutantTable) { t.onRestoredHold(func(h *locktable.HoldRecord) { h.InDoubt = false }) },
	},
	{
		Name:     "restored-without-lease-event",
		Rule:     "the deadline that a session was sent last is restored",
		Detected: `does not show hold|the journal of host \d+ has`,
		mutate: func(t *mutantTable) {
			t.onRestore = func(m *locktable.Snapshot) {
				for i := range m.Sessions {
					m.Sessions[i].LeaseSent = 0
				}
			}
		},
	},
	{
		Name:     "restored-served",
		Rule:     "a detached session stays detached",
		Detected: `of a detached session is renewed|a detached session does not end|which is detached|after \{ID`,
		mutate: func(t *mutantTable) {
			t.onRestore = func(m *locktable.Snapshot) {
				for i := range m.Sessions {
					m.Sessions[i].Phase = locktable.SessionServing
				}
				for i := range m.Holds {
					if h := &m.Holds[i]; h.Phase == locktable.HoldUnserved {
						h.Phase = locktable.HoldLive
					}
				}
			}
		},
	},
	{
		Name:     "restored-without-drops",
		Rule:     "a successor completes the releases of its predecessor",
		Detected: `has forgotten that Redis has|its journal still has|in two slots`,
		mutate: func(t *mutantTable) {
			t.onRestore = func(m *locktable.Snapshot) {
				locks := m.Locks
				m.Locks = nil
				for i := range m.Holds {
					h := &m.Holds[i]
					m.Locks, h.Lock = append(m.Locks, locks[h.Lock]), uint32(i)
				}
			}
		},
	},
	{
		Name:     "lease-event-before-losses",
		Rule:     "a client that has returned is notified of its losses before it gets a lease event",
		Detected: `believe for longer in hold \d+, which it has lost`,
		mutate: func(t *mutantTable) {
			t.onResume = func(s locktable.SessionID) {
				t.onEffect = change(func(*locktable.Effect) {})
				t.added = append(t.added, locktable.Effect{Kind: locktable.Lease, Session: s, Deadline: 1<<62 - 1})
			}
		},
	},
	{
		Name:     "claims-everything",
		Rule:     "what is not claimed is released",
		Detected: `did not claim hold \d+, and still has it`,
		mutate: func(t *mutantTable) {
			t.onClaim = func(s locktable.SessionID, req *protocol.Claim) {
				claimed := make(map[uint64]bool)
				for _, c := range req.Holds {
					claimed[c.Hold] = true
				}
				for _, c := range t.restored[s] {
					if !claimed[c.Hold] && t.Holds(s) > 0 {
						req.Holds = append(req.Holds, c)
					}
				}
			}
		},
	},
	{
		Name:     "claims-nothing",
		Rule:     "what is claimed is kept",
		Detected: `is given up early|is replaced while it lasts|it has \{`,
		mutate: func(t *mutantTable) {
			t.onClaim = func(_ locktable.SessionID, req *protocol.Claim) { req.Holds = nil }
		},
	},
	{
		Name:     "claims-all-entries",
		Rule:     "entries that are not claimed are released",
		Detected: `claimed hold \d+ with \d+ entries`,
		From:     102,
		mutate: func(t *mutantTable) {
			t.onClaim = func(s locktable.SessionID, req *protocol.Claim) {
				for i := range req.Holds {
					for _, c := range t.restored[s] {
						if c.Hold == req.Holds[i].Hold {
							req.Holds[i].Entries = c.Entries
						}
					}
				}
			}
		},
	},
	{
		Name:     "no-forgotten",
		Rule:     "a client is notified of a claimed hold that is gone",
		Detected: `which is gone, and is not notified`,
		mutate:   func(t *mutantTable) { t.onEffect = without(isLost(protocol.Forgotten)) },
	},
	{
		Name:     "forgotten-twice",
		Rule:     "a client is notified of a claimed hold that is gone once",
		Detected: `is forgotten, and did not claim it`,
		mutate:   func(t *mutantTable) { t.onEffect = twice(isLost(protocol.Forgotten)) },
	},
	{
		Name:     "no-claimed",
		Rule:     "a claim is answered",
		Detected: `of session \d+ is not answered`,
		mutate:   func(t *mutantTable) { t.onEffect = without(is(locktable.Claimed)) },
	},
	{
		Name:     "waiters-of-stopped-sidecar",
		Rule:     "a sidecar that stops drops its waiters",
		Detected: `which is not connected`,
		mutate:   func(t *mutantTable) { t.onDropWaiters = func(int64) {} },
	},
}

// overtake lets the second of two waiters go first: it holds an acquire back until the next
// input.
func overtake(t *mutantTable) {
	type heldBack struct {
		s   locktable.SessionID
		req protocol.Acquire
	}
	var first *heldBack
	t.onInput = func(now int64) {
		if f := first; f != nil {
			first = nil
			t.Table.Acquire(now, f.s, f.req)
		}
	}
	t.onAcquire = func(now int64, s locktable.SessionID, req *protocol.Acquire) bool {
		if first == nil && req.Owner == 0 && req.WaitMS == protocol.Forever {
			first = &heldBack{s, *req}
			return false
		}
		t.Table.Acquire(now, s, *req)
		t.onInput(now)
		return false
	}
}

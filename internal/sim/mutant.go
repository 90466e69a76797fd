package sim

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// spoiled is a table with a saboteur between it and the world. The saboteur breaks
// one rule; what is nil is left alone.
type spoiled struct {
	madeAt int64
	*locktable.Table
	cfg locktable.Config

	effect  func(e *locktable.Effect) (times int)
	result  func(now int64, r *locktable.Result)
	acquire func(req *protocol.Acquire)
	list    func(now int64)
	deaf    bool // no Message
	blind   bool // no Down
	slow    int64
	detach  func(now int64, s locktable.SessionID)
	close   func(now int64, s locktable.SessionID)

	unkept     func() int
	keepLock   func(slot uint32, r *locktable.LockRecord) bool // false: it does not reach the Keeper
	forgetLock func(slot uint32) (times int)
	restore    func(now int64, m *locktable.Memory)
	resume     func(s locktable.SessionID)
	claim      func(s locktable.SessionID, req *protocol.Claim)
	adjourn    func(now int64)

	out []locktable.Effect

	// What saboteurs remember.
	token   map[string]uint64
	holder  locktable.SessionID
	hold    uint64
	names   map[uint64]string // by session<<32 + request
	turned  map[string]bool
	delayed *delayedAcquire
	held    map[locktable.SessionID][]protocol.ClaimedHold // as restored
	extra   []locktable.Effect
	kept    int
}

type delayedAcquire struct {
	s   locktable.SessionID
	req protocol.Acquire
}

// configure makes the table that is spoiled.
func (t *spoiled) configure(change func(*locktable.Config)) {
	cfg := t.cfg
	cfg.Keeper = &spoiledKeeper{t.cfg.Keeper, t}
	change(&cfg)
	t.Table = locktable.New(cfg, t.madeAt)
}

func (t *spoiled) Effects() []locktable.Effect {
	if t.effect == nil {
		return t.Table.Effects()
	}
	t.out = append(t.out[:0], t.extra...)
	t.extra = nil
	for _, e := range t.Table.Effects() {
		for range t.effect(&e) {
			t.out = append(t.out, e)
		}
	}
	return t.out
}

func (t *spoiled) Result(now int64, r locktable.Result) {
	if t.result != nil {
		t.result(now, &r)
	}
	t.Table.Result(now, r)
}

func (t *spoiled) Acquire(now int64, s locktable.SessionID, req protocol.Acquire) {
	if t.acquire != nil {
		t.acquire(&req)
	}
	if t.names != nil {
		t.names[uint64(s)<<32+req.ID] = req.Name
	}
	t.Table.Acquire(now, s, req)
}

func (t *spoiled) List(now int64, after uint64, yield func(protocol.LockRow) bool) uint64 {
	next := t.Table.List(now, after, yield)
	if t.list != nil {
		t.list(now)
	}
	return next
}

func (t *spoiled) Message(now int64, name string) {
	if !t.deaf {
		t.Table.Message(now, name)
	}
}

func (t *spoiled) Subscribed(now int64, name string) {
	t.Table.Subscribed(now, name)
}

func (t *spoiled) Down(now int64, why string) {
	if !t.blind {
		t.Table.Down(now, why)
	}
}

func (t *spoiled) Next() (int64, bool) {
	at, ok := t.Table.Next()
	return at + t.slow, ok
}

func (t *spoiled) Detach(now int64, s locktable.SessionID) {
	if t.detach != nil {
		t.detach(now, s)
		return
	}
	t.Table.Detach(now, s)
}

func (t *spoiled) Close(now int64, s locktable.SessionID) {
	if t.close != nil {
		t.close(now, s)
		return
	}
	t.Table.Close(now, s)
}

func (t *spoiled) Restore(now int64, m *locktable.Memory) {
	t.held = make(map[locktable.SessionID][]protocol.ClaimedHold)
	for i := range m.Locks {
		if h := &m.Locks[i].Hold; h.Num != 0 {
			t.held[h.Session] = append(t.held[h.Session], protocol.ClaimedHold{Hold: h.Num, Entries: h.Count})
		}
	}
	if t.restore != nil {
		t.restore(now, m)
	}
	t.Table.Restore(now, m)
}

func (t *spoiled) Resume(s locktable.SessionID, p locktable.Peer) {
	t.Table.Resume(s, p)
	if t.resume != nil {
		t.resume(s)
	}
}

func (t *spoiled) Claim(now int64, s locktable.SessionID, req *protocol.Claim) string {
	if t.claim != nil {
		t.claim(s, req)
	}
	return t.Table.Claim(now, s, req)
}

func (t *spoiled) Adjourn(now int64) {
	if t.adjourn != nil {
		t.adjourn(now)
		return
	}
	t.Table.Adjourn(now)
}

func (t *spoiled) Unkept() int {
	if t.unkept != nil {
		return t.unkept()
	}
	return t.Table.Unkept()
}

// holds breaks what is restored of every hold.
func (t *spoiled) holds(f func(h *locktable.HoldRecord)) {
	t.restore = func(_ int64, m *locktable.Memory) {
		for i := range m.Locks {
			if h := &m.Locks[i].Hold; h.Num != 0 {
				f(h)
			}
		}
	}
}

// spoiledKeeper stands between a table and its memory.
type spoiledKeeper struct {
	locktable.Keeper
	t *spoiled
}

func (k *spoiledKeeper) KeepLock(slot uint32, r *locktable.LockRecord) uint32 {
	if k.t.keepLock != nil && !k.t.keepLock(slot, r) {
		return slot
	}
	return k.Keeper.KeepLock(slot, r)
}

func (k *spoiledKeeper) ForgetLock(slot uint32) {
	times := 1
	if k.t.forgetLock != nil {
		times = k.t.forgetLock(slot)
	}
	for range times {
		k.Keeper.ForgetLock(slot)
	}
}

var sabotages = []struct {
	rule   string // that is broken
	caught string // what the checker says
	spoil  func(t *spoiled)
}{
	{
		"a deadline counts from when the operation was sent, not from when its answer came",
		`is believed in until`,
		func(t *spoiled) {
			t.result = func(now int64, r *locktable.Result) { r.Sent = now }
		},
	},
	{
		"a deadline allows for clocks that run differently",
		`is believed in until`,
		func(t *spoiled) {
			t.result = func(_ int64, r *locktable.Result) { r.Sent += int64(t.lease())/100 + 2*ms }
		},
	},
	{
		"to list locks changes nothing",
		`is given up early|is replaced while it lasts|is said not to be held|does not show hold|two owners`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Granted {
					t.holder, t.hold = e.Session, e.Hold
				}
				return 1
			}
			t.list = func(now int64) { t.Table.Release(now, t.holder, protocol.Release{Hold: t.hold}) }
		},
	},
	{
		"every hold has a token of its own",
		`token \d+ (was used before|after)`,
		func(t *spoiled) {
			t.token, t.names = make(map[string]uint64), make(map[uint64]string)
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Granted && e.Count == 1 {
					name := t.names[uint64(e.Session)<<32+e.ID]
					if last := t.token[name]; last != 0 {
						e.Token = last
					}
					t.token[name] = e.Token
				}
				return 1
			}
		},
	},
	{
		"a waiter hears when the lock is free",
		`lost wake-up`,
		func(t *spoiled) {
			t.deaf = true
			t.result = func(_ int64, r *locktable.Result) {
				if r.Outcome == locktable.Other {
					r.TTLMS = 1 << 40
				}
			}
		},
	},
	{
		"nobody is answered before Redis has said yes",
		`is believed in until|two owners|was used before or never drawn`,
		func(t *spoiled) {
			t.result = func(now int64, r *locktable.Result) {
				if r.Kind == locktable.Take && r.Outcome == locktable.Other {
					*r = locktable.Result{Kind: r.Kind, Name: r.Name, Sent: r.Sent, Token: uint64(now)}
				}
			}
		},
	},
	{
		"a renewal that failed is no renewal",
		`is believed in until|a lease event comes`,
		func(t *spoiled) {
			t.result = func(_ int64, r *locktable.Result) {
				if r.Kind == locktable.Keep && r.Outcome != locktable.Done {
					*r = locktable.Result{Kind: r.Kind, Name: r.Name, Sent: r.Sent}
				}
			}
		},
	},
	{
		"a lock is not taken back from under those who are known to wait",
		`takes what it gives back`,
		func(t *spoiled) {
			t.result = func(_ int64, r *locktable.Result) { r.Listeners = min(r.Listeners, 0) }
		},
	},
	{
		"what follows a release has a number of its own",
		`the release before it would undo`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Redis {
					switch e.Op.Kind {
					case locktable.Drop:
						t.turned[e.Op.Name], t.token[e.Op.Name] = true, e.Op.Num
					case locktable.Take:
						if t.turned[e.Op.Name] {
							e.Op.Num = t.token[e.Op.Name]
						}
					}
				}
				return 1
			}
			t.turned, t.token = make(map[string]bool), make(map[string]uint64)
			t.result = func(_ int64, r *locktable.Result) {
				if r.Kind == locktable.Drop {
					delete(t.turned, r.Name)
				}
			}
		},
	},
	{
		"a hold is not given up while it lasts",
		`is given up early`,
		func(t *spoiled) {
			t.turned = make(map[string]bool)
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Redis && e.Op.Kind == locktable.Keep {
					e.Op.Kind = locktable.Drop
					t.turned[e.Op.Name] = true
				}
				return 1
			}
			t.result = func(_ int64, r *locktable.Result) {
				if t.turned[r.Name] {
					delete(t.turned, r.Name)
					r.Kind = locktable.Keep
				}
			}
		},
	},
	{
		"a loss is told once",
		`is told that it lost hold \d+, which it does not have`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return 1 + btoi(e.Kind == locktable.Lost) }
		},
	},
	{
		"a loss is told",
		`was not told that hold|has outlived|was not told|two owners|not told that it is lost|is given up early|is replaced while it lasts|is believed in until`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Lost) }
		},
	},
	{
		"a loss is told with its reason",
		`for the wrong reason|what was found is not said`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Lost {
					e.Reason = protocol.Stolen
				}
				return 1
			}
		},
	},
	{
		"an operation with unknown end may have been carried out",
		`has forgotten that Redis has|does nothing about|is believed in until`,
		func(t *spoiled) {
			t.result = func(_ int64, r *locktable.Result) {
				if r.Outcome == locktable.Unknown {
					r.Outcome = locktable.Unsent
				}
			}
		},
	},
	{
		"a lease event holds for every watchdog hold of the session",
		`is believed in until`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Lease {
					e.Deadline += int64(t.lease()) / 8
				}
				return 1
			}
		},
	},
	{
		"a lease event reaches the client",
		`was not told that hold|for the wrong reason|though nothing kept its host from renewing|a lease event comes|is said not to be held`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Lease) }
		},
	},
	{
		"crash_delay keeps the lock",
		`is given up early|is replaced while it lasts|two owners|does not show hold`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.CrashDelayMS = 0 }
		},
	},
	{
		"max_hold ends a hold",
		`has outlived its max_hold|two owners`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				return btoi(e.Kind != locktable.Lost || e.Reason != protocol.MaxHold)
			}
		},
	},
	{
		"the end of max_hold is told with the grant",
		`is told to end at`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.MaxHoldMS = 0 }
		},
	},
	{
		"a fixed lease is not renewed",
		`is granted for longer than that`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.LeaseMS = 0 }
		},
	},
	{
		"a wait ends in time",
		`has waited .* longer than it would`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.WaitMS *= 1 + int64(btoi(req.WaitMS > 0)) }
		},
	},
	{
		"wait 0 does not wait for a silent Redis",
		`has waited .* longer than it would`,
		func(t *spoiled) {
			t.configure(func(c *locktable.Config) { c.TryWithin = time.Hour })
		},
	},
	{
		"Redis has time to answer an acquire that does not wait",
		`was unavailable, though Redis answers`,
		func(t *spoiled) {
			t.configure(func(c *locktable.Config) { c.TryWithin = time.Nanosecond })
		},
	},
	{
		"the silence of Redis is not blamed on others",
		`timed out, and (no other request was in its way|Redis has been silent)`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				if e.Kind == locktable.Refusal && strings.HasPrefix(e.Msg, "Redis has not answered") {
					e.Code = protocol.Timeout
				}
				return 1
			}
		},
	},
	{
		"wait 0 does not wait",
		`will not wait, and waits`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) {
				if req.WaitMS == 0 {
					req.WaitMS = 1
				}
			}
		},
	},
	{
		"a circle is told",
		`closes a circle, and waits`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Refusal || e.Code != protocol.Deadlock) }
		},
	},
	{
		"an owner re-enters",
		`is a re-entry, and waits`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.Owner = 0 }
		},
	},
	{
		"an owner re-enters only if it wants to",
		`two owners`,
		func(t *spoiled) {
			t.acquire = func(req *protocol.Acquire) { req.NotReentrant = false }
		},
	},
	{
		"the entries are mirrored in Redis",
		`tells nobody, and Redis has`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				e.Op.Count = min(e.Op.Count, 1)
				return 1
			}
		},
	},
	{
		"every request is answered once",
		`which is not waiting for that`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return 1 + btoi(e.Kind == locktable.Released) }
		},
	},
	{
		"every request is answered",
		`is not answered`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Canceled) }
		},
	},
	{
		"Redis is not asked while it is down",
		`asks Redis, which is down`,
		func(t *spoiled) { t.blind = true },
	},
	{
		"what is due happens",
		`was not told that hold|has waited|has outlived|though nothing kept|is said not to be held|lost wake-up|is believed in until`,
		func(t *spoiled) { t.slow = sec },
	},
	{
		"a client that misbehaves but lives does not lose its locks",
		`is given up early|is replaced while it lasts|two owners`,
		func(t *spoiled) { t.detach = t.Table.Close },
	},
	{
		"a dead client's locks are released",
		`has forgotten that|does nothing about|two owners|and it still has|nothing is wrong any more|is closed|hold \d+, which has ended`,
		func(t *spoiled) { t.close = func(int64, locktable.SessionID) {} },
	},
	{
		"a lock does not stay on one host while others wait",
		`handed the lock over \d+ times`,
		func(t *spoiled) {
			t.result = func(_ int64, r *locktable.Result) { r.Listeners = 0 }
		},
	},
	{
		"subscriptions end",
		`is still subscribed|subscribes twice`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Unsubscribe) }
		},
	},
	{
		"every change of a hold is kept",
		`does not keep|keeps \{`,
		func(t *spoiled) {
			t.keepLock = func(slot uint32, _ *locktable.LockRecord) bool {
				t.kept++
				return slot == 0 || t.kept%8 != 0
			}
		},
	},
	{
		"a lock without room counts until it is kept or has ended",
		`does not keep hold|keeps <nil>`,
		func(t *spoiled) {
			t.unkept = func() int { return 0 }
		},
	},
	{
		"a lock is kept before Redis is asked for it",
		`Redis is asked for .*, and host \d+ keeps`,
		func(t *spoiled) {
			t.keepLock = func(slot uint32, r *locktable.LockRecord) bool { return slot != 0 || r.Hold.Num != 0 }
		},
	},
	{
		"a slot is freed",
		`keeps a lock in two slots|still keeps`,
		func(t *spoiled) { t.forgetLock = func(uint32) int { return 0 } },
	},
	{
		"a slot is freed once",
		`frees slot \d+, which it does not have`,
		func(t *spoiled) { t.forgetLock = func(uint32) int { return 2 } },
	},
	{
		"numbers go on after a restart",
		`as its last number, after|a first entry with hold`,
		func(t *spoiled) {
			t.restore = func(_ int64, m *locktable.Memory) { m.Last /= 2 }
		},
	},
	{
		"a restored hold has the token that it had",
		`host \d+ shows`,
		func(t *spoiled) { t.holds(func(h *locktable.HoldRecord) { h.Token++ }) },
	},
	{
		"a restored hold has the entries that it had",
		`claims more entries than it has|host \d+ shows`,
		func(t *spoiled) { t.holds(func(h *locktable.HoldRecord) { h.Count = 1 }) },
	},
	{
		"a restored hold lasts as long as its client was told",
		`does not show hold|keeps \{`,
		func(t *spoiled) {
			t.restore = func(_ int64, m *locktable.Memory) {
				for i := range m.Sessions {
					m.Sessions[i].Told -= int64(t.lease()) / 2
				}
				for i := range m.Locks {
					m.Locks[i].Hold.Deadline -= int64(t.lease()) / 2
				}
			}
		},
	},
	{
		"a restored hold lasts no longer than its client may have been told",
		`is believed in until|lease event|does not end`,
		func(t *spoiled) {
			t.holds(func(h *locktable.HoldRecord) { h.Deadline += int64(t.lease()) / 2 })
		},
	},
	{
		"a restored hold is renewed while its client is away",
		`though nothing kept its host from renewing it|keeps \{`,
		func(t *spoiled) {
			t.holds(func(h *locktable.HoldRecord) {
				if h.LeaseMS == 0 {
					h.LeaseMS = uint32(t.lease() / time.Millisecond)
				}
			})
		},
	},
	{
		"a restored hold ends at its max_hold",
		`has outlived its max_hold|keeps \{`,
		func(t *spoiled) { t.holds(func(h *locktable.HoldRecord) { h.End = 0 }) },
	},
	{
		"a restored hold has its crash delay",
		`is given up early|is replaced while it lasts|does not show hold|two owners`,
		func(t *spoiled) { t.holds(func(h *locktable.HoldRecord) { h.CrashDelayMS = 0 }) },
	},
	{
		"a restored hold that Redis may have lost is asserted",
		`and not asserted again`,
		func(t *spoiled) { t.holds(func(h *locktable.HoldRecord) { h.InDoubt = false }) },
	},
	{
		"what a session was told is restored",
		`does not show hold|keeps \{`,
		func(t *spoiled) {
			t.restore = func(_ int64, m *locktable.Memory) {
				for i := range m.Sessions {
					m.Sessions[i].Told = 0
				}
			}
		},
	},
	{
		"a detached session stays detached",
		`of a detached session is renewed|a detached session does not end|which is detached|after \{ID`,
		func(t *spoiled) {
			t.restore = func(_ int64, m *locktable.Memory) {
				for i := range m.Sessions {
					m.Sessions[i].Detached = false
				}
				for i := range m.Locks {
					m.Locks[i].Hold.LeaseMS = 0
				}
			}
		},
	},
	{
		"what was being given back is given back by the successor",
		`has forgotten that Redis has|it still keeps|in two slots`,
		func(t *spoiled) {
			t.restore = func(_ int64, m *locktable.Memory) {
				locks := m.Locks
				m.Locks = nil
				for _, r := range locks {
					if r.Hold.Num != 0 {
						m.Locks = append(m.Locks, r)
					}
				}
			}
		},
	},
	{
		"a client that is back hears what it has lost before it hears of renewals",
		`believe for longer in hold \d+, which it has lost`,
		func(t *spoiled) {
			t.resume = func(s locktable.SessionID) {
				t.effect = func(*locktable.Effect) int { return 1 }
				t.extra = append(t.extra, locktable.Effect{Kind: locktable.Lease, Session: s, Deadline: 1<<62 - 1})
			}
		},
	},
	{
		"what is not claimed is released",
		`did not claim hold \d+, and still has it`,
		func(t *spoiled) {
			t.claim = func(s locktable.SessionID, req *protocol.Claim) {
				claimed := make(map[uint64]bool)
				for _, c := range req.Holds {
					claimed[c.Hold] = true
				}
				for _, c := range t.held[s] {
					if !claimed[c.Hold] && t.Holds(s) > 0 {
						req.Holds = append(req.Holds, c)
					}
				}
			}
		},
	},
	{
		"what is claimed is kept",
		`is given up early|is replaced while it lasts|it has \{`,
		func(t *spoiled) {
			t.claim = func(_ locktable.SessionID, req *protocol.Claim) { req.Holds = nil }
		},
	},
	{
		"entries that are not claimed are released",
		`claimed hold \d+ with \d+ entries`,
		func(t *spoiled) {
			t.claim = func(s locktable.SessionID, req *protocol.Claim) {
				for i := range req.Holds {
					for _, c := range t.held[s] {
						if c.Hold == req.Holds[i].Hold {
							req.Holds[i].Entries = c.Entries
						}
					}
				}
			}
		},
	},
	{
		"a claimed hold that is gone is told",
		`which is gone, and is not told`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				return btoi(e.Kind != locktable.Lost || e.Reason != protocol.Forgotten)
			}
		},
	},
	{
		"a claimed hold that is gone is told once",
		`is forgotten, and did not claim it`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int {
				return 1 + btoi(e.Kind == locktable.Lost && e.Reason == protocol.Forgotten)
			}
		},
	},
	{
		"a claim is answered",
		`of session \d+ is not answered`,
		func(t *spoiled) {
			t.effect = func(e *locktable.Effect) int { return btoi(e.Kind != locktable.Claimed) }
		},
	},
	{
		"a sidecar that stops lets nobody wait",
		`which is not there`,
		func(t *spoiled) { t.adjourn = func(int64) {} },
	},
	{
		"waiters get a lock in the order of their arrival",
		`out of turn`,
		nil, // see hurried
	},
}

func (t *spoiled) lease() time.Duration { return t.cfg.Lease }

// hurried lets the second of two waiters go first: it holds an acquire back until
// the next input.
type hurried struct{ spoiled }

func (t *hurried) let(now int64) {
	if d := t.delayed; d != nil {
		t.delayed = nil
		t.Table.Acquire(now, d.s, d.req)
	}
}

func (t *hurried) Acquire(now int64, s locktable.SessionID, req protocol.Acquire) {
	if t.delayed == nil && req.Owner == 0 && req.WaitMS == protocol.Forever {
		t.delayed = &delayedAcquire{s, req}
		return
	}
	t.Table.Acquire(now, s, req)
	t.let(now)
}

func (t *hurried) Close(now int64, s locktable.SessionID) {
	t.let(now)
	t.Table.Close(now, s)
}

func (t *hurried) Detach(now int64, s locktable.SessionID) {
	t.let(now)
	t.Table.Detach(now, s)
}

func (t *hurried) Cancel(now int64, s locktable.SessionID, req protocol.Cancel) {
	t.let(now)
	t.Table.Cancel(now, s, req)
}

package locktable_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// spoiled is a table with a saboteur between it and the world. The saboteur breaks
// one rule; what is nil is left alone.
type spoiled struct {
	*locktable.Table
	cfg locktable.Config

	effect  func(e *locktable.Effect) (times int)
	result  func(now int64, r *locktable.Result)
	acquire func(req *protocol.Acquire)
	list    func(now int64)
	deaf    bool // no Message and no Subscribed
	blind   bool // no Down
	slow    int64
	detach  func(now int64, s locktable.SessionID)
	close   func(now int64, s locktable.SessionID)
	out     []locktable.Effect

	// What saboteurs remember.
	token   map[string]uint64
	holder  locktable.SessionID
	hold    uint64
	names   map[uint64]string // by session<<32 + request
	turned  map[string]bool
	delayed *delayedAcquire
}

type delayedAcquire struct {
	s   locktable.SessionID
	req protocol.Acquire
}

func (t *spoiled) Effects() []locktable.Effect {
	if t.effect == nil {
		return t.Table.Effects()
	}
	t.out = t.out[:0]
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
	if !t.deaf {
		t.Table.Subscribed(now, name)
	}
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
		`for the wrong reason`,
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
		`has outlived its max_hold`,
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

// A checker that never complains proves nothing. Each rule is broken on purpose,
// and must be missed.
func TestSimulationCatchesBrokenRules(t *testing.T) {
	const seeds = 300
	for _, sabotage := range sabotages {
		t.Run(sabotage.rule, func(t *testing.T) {
			t.Parallel()
			caught := regexp.MustCompile(sabotage.caught)
			var other error
			for seed := uint64(1); seed <= seeds; seed++ {
				cfg := planOf(seed).table
				_, err := play(seed, func(table *locktable.Table) lockTable {
					s := &hurried{spoiled{Table: table, cfg: cfg}}
					if sabotage.spoil == nil {
						return s
					}
					sabotage.spoil(&s.spoiled)
					return &s.spoiled
				}, false)
				if err == nil {
					continue
				}
				if caught.MatchString(err.Error()) {
					t.Logf("caught: %v", err)
					return
				}
				other = err
			}
			t.Fatalf("%d seeds passed, and nobody noticed; last complaint: %v", seeds, other)
		})
	}
}

func planOf(seed uint64) plan {
	var r random
	r.Seed(seed, planStream)
	return drawPlan(seed, &r)
}

package locktable_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// manyWorld is one table, the clients of one read/write lock, and a Redis that has its key. Each input is drawn.
type manyWorld struct {
	*testing.T
	*rand.Rand
	seed    uint64
	cfg     locktable.Config
	tb      *locktable.Table
	journal *recordJournal
	now     int64
	steps   []string

	peers    map[locktable.SessionID]locktable.Peer // of open sessions
	last     locktable.SessionID
	ids      uint64
	requests map[uint64]manyRequest
	holds    map[uint64]*manyHold // in which clients believe
	used     uint64               // largest hold number
	grants   [2]int               // by mode
	together int                  // the most shared holds at a time
	restarts int

	flying    []redisop.Op
	keyUntil  int64 // 0: the key is not this host's
	mode      uint32
	isForeign bool // another host has the key
	tokens    uint64
}

type manyRequest struct {
	session locktable.SessionID
	mode    locktable.Mode
	acquire protocol.Acquire
}

type manyHold struct {
	session  locktable.SessionID
	mode     locktable.Mode
	owner    uint64
	entries  uint32
	token    uint64
	deadline int64
	end      int64
	isFixed  bool
}

const manyName = "a"

func newManyWorld(t *testing.T, seed uint64) *manyWorld {
	w := &manyWorld{
		T: t, Rand: rand.New(rand.NewPCG(seed, 39)), seed: seed, now: int64(time.Hour), journal: newRecordJournal(),
		peers: map[locktable.SessionID]locktable.Peer{}, requests: map[uint64]manyRequest{}, holds: map[uint64]*manyHold{},
	}
	w.cfg = locktable.Config{Journal: w.journal, Lease: time.Duration(1+w.IntN(30)) * time.Second, Tokens: 1 + w.IntN(8), Seed: seed}
	if w.IntN(5) < 2 {
		w.cfg.MaxWork = 1 + w.IntN(3)
	}
	w.tb = locktable.New(w.cfg, w.now)
	w.tb.Up(w.now, 0, false, seed%2 == 0)
	for range 5 {
		w.open()
	}
	return w
}

func (w *manyWorld) open() {
	w.last++
	p := locktable.Peer{PID: int64(w.last), UID: int64(w.last % 2)}
	w.peers[w.last] = p
	w.tb.Open(w.now, w.last, p)
	w.journal.PutSession(w.tb.Record(w.last))
}

func (w *manyWorld) step(format string, args ...any) {
	w.steps = append(w.steps, fmt.Sprintf("%v  %s", time.Duration(w.now), fmt.Sprintf(format, args...)))
}

func (w *manyWorld) fail(format string, args ...any) {
	w.Helper()
	from := max(0, len(w.steps)-60)
	for _, s := range w.steps[from:] {
		w.Log(s)
	}
	w.Log(w.tb.Text(w.now, manyName))
	w.Fatalf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}

// settle takes the effects of an input, and checks what must be true after each.
func (w *manyWorld) settle() {
	w.Helper()
	for _, e := range w.tb.Effects() {
		w.take(&e)
	}
	w.expire()
	exclusive, shared := 0, 0
	for id, h := range w.holds {
		if h.mode == locktable.Exclusive {
			exclusive++
		} else {
			shared++
		}
		if h.deadline > w.keyUntil {
			w.fail("hold %d is believed in until %v, and the key is this host's until %v", id, time.Duration(h.deadline), time.Duration(w.keyUntil))
		}
		w.checkRecord(id, h)
	}
	for _, r := range w.journal.holds {
		switch isKept := r.Phase == locktable.HoldKept && r.KeepUntil > w.now; {
		case r.KeepUntil > max(w.now, w.keyUntil):
			w.fail("hold %d is kept until %v, and the key is this host's until %v", r.ID, time.Duration(r.KeepUntil), time.Duration(w.keyUntil))
		case isKept && r.Mode == locktable.Exclusive:
			exclusive++
		case isKept:
			shared++
		}
	}
	if exclusive > 1 || exclusive > 0 && shared > 0 {
		w.fail("there are %d exclusive holds, and %d shared ones", exclusive, shared)
	}
	w.together = max(w.together, shared)
	if err := w.tb.Audit(); err != nil {
		w.fail("%v", err)
	}
}

// expire ends the key, and the belief of clients, when their times are over.
func (w *manyWorld) expire() {
	if w.keyUntil <= w.now {
		w.keyUntil = 0
	}
	for id, h := range w.holds {
		if w.now >= h.deadline || h.end != 0 && w.now >= h.end {
			delete(w.holds, id)
		}
	}
}

func (w *manyWorld) checkRecord(id uint64, h *manyHold) {
	w.Helper()
	for _, r := range w.journal.holds {
		if r.ID != id {
			continue
		}
		deadline := r.Deadline
		if s := w.journal.sessions[h.session]; r.LeaseMS == 0 && r.LeaseSeq != s.LeaseSeq {
			deadline = max(deadline, s.LeaseSent)
		}
		if r.Token != h.token || r.Mode != h.mode || r.Session != h.session || r.Entries < h.entries || r.Owner != h.owner || r.Phase.IsOrphan() || deadline < h.deadline {
			w.fail("the journal has %+v, until %v, of hold %d: %+v", r, time.Duration(deadline), id, *h)
		}
		return
	}
	w.fail("the journal does not have hold %d: %+v", id, *h)
}

func (w *manyWorld) take(e *locktable.Effect) {
	w.Helper()
	switch e.Kind {
	case locktable.Redis:
		w.step("-> %v num=%d lease=%d reserve=%d flags=%d", e.Op.Kind, e.Op.HoldID, e.Op.LeaseMS, e.Op.Reserve, e.Op.Flags)
		w.flying = append(w.flying, e.Op)
	case locktable.Granted:
		w.granted(e)
	case locktable.Refusal:
		w.step("-> refused %d: %s %s", e.ID, e.Code, e.Msg)
		delete(w.requests, e.ID)
	case locktable.Lost:
		w.step("-> lost %d: %s", e.Hold, e.Reason)
		switch h := w.holds[e.Hold]; {
		case h == nil:
		case h.session != e.Session:
			w.fail("session %d lost hold %d of session %d", e.Session, e.Hold, h.session)
		case e.Reason == protocol.Expired && w.now < h.deadline-int64(w.cfg.Lease)*3/8: // it is given up a quarter of a lease before, and two buckets
			w.fail("hold %d is lost at its end, which is %v", e.Hold, time.Duration(h.deadline))
		}
		delete(w.holds, e.Hold)
	case locktable.Lease:
		w.step("-> lease of %d until %v", e.Session, time.Duration(e.Deadline))
		for _, h := range w.holds {
			if h.session == e.Session && !h.isFixed {
				h.deadline = max(h.deadline, e.Deadline)
			}
		}
	}
}

func (w *manyWorld) granted(e *locktable.Effect) {
	w.Helper()
	r, ok := w.requests[e.ID]
	w.step("-> granted %d of session %d, count=%d token=%d until %v", e.Hold, e.Session, e.Count, e.Token, time.Duration(e.Deadline))
	if !ok || r.session != e.Session {
		w.fail("request %d of session %d is answered, and there is none", e.ID, e.Session)
	}
	delete(w.requests, e.ID)
	if h := w.holds[e.Hold]; h != nil {
		if h.session != e.Session || h.owner == 0 || h.owner != r.acquire.Owner || e.Count != h.entries+1 || h.mode == locktable.Shared && r.mode == locktable.Exclusive {
			w.fail("re-entry into %+v by %+v", *h, r)
		}
		h.entries++
		h.deadline = max(h.deadline, e.Deadline)
		return
	}
	if e.Hold <= w.used || e.Count != 1 || e.Token == 0 || e.Deadline <= w.now {
		w.fail("hold %d with count %d and token %d until %v begins, after %d", e.Hold, e.Count, e.Token, time.Duration(e.Deadline), w.used)
	}
	w.used = e.Hold
	w.grants[r.mode]++
	w.holds[e.Hold] = &manyHold{
		session: e.Session, mode: r.mode, owner: r.acquire.Owner, entries: 1, token: e.Token, deadline: e.Deadline, end: e.End, isFixed: r.acquire.LeaseMS > 0,
	}
}

// pick returns one of the keys of a map, and whether there is one.
func pick[K ~uint64, V any](r *rand.Rand, m map[K]V) (key K, ok bool) {
	if len(m) == 0 {
		return 0, false
	}
	return slices.Sorted(maps.Keys(m))[r.IntN(len(m))], true
}

// do makes one input.
func (w *manyWorld) do() {
	w.Helper()
	if w.IntN(10) == 0 { // the timers are late
		d := time.Duration(w.IntN(3000)) * time.Millisecond
		w.step("%v pass, and no timer fires", d)
		w.now += int64(d)
		w.expire()
	}
	switch n := w.IntN(100); {
	case n < 32:
		w.acquire()
	case n < 52:
		w.release()
	case n < 78:
		w.answer()
	case n < 92:
		w.pass(time.Duration(w.IntN(300)) * time.Millisecond)
	case n < 94:
		w.pass(time.Duration(w.IntN(20)) * time.Second)
	case n < 96:
		w.end()
	case n < 97:
		w.step("force-release")
		w.tb.EndHolds(w.now, manyName, 0)
	case n < 98:
		w.restart()
	case n < 99:
		if len(w.flying) == 0 {
			isLost := w.IntN(2) == 0
			w.step("up, data lost: %v", isLost)
			w.tb.Up(w.now, 0, isLost, w.seed%2 == 0)
		}
	default:
		if id, ok := pick(w.Rand, w.requests); ok {
			w.step("cancel %d", id)
			w.tb.Cancel(w.now, w.requests[id].session, protocol.Cancel{Target: id})
			delete(w.requests, id)
		}
	}
	w.settle()
}

func (w *manyWorld) acquire() {
	session, _ := pick(w.Rand, w.peers)
	w.ids++
	r := manyRequest{session, locktable.Shared, protocol.Acquire{ID: w.ids, Name: manyName, WaitMS: []int64{0, 500, protocol.Forever}[w.IntN(3)], Owner: uint64(w.IntN(3)), NotReentrant: w.IntN(6) == 0}}
	if w.IntN(5) < 2 {
		r.mode = locktable.Exclusive
	}
	switch w.IntN(8) {
	case 0:
		r.acquire.LeaseMS = 300 + w.Int64N(60_000)
	case 1:
		r.acquire.MaxHoldMS = 1 + w.Int64N(20_000)
	case 2:
		r.acquire.CrashDelayMS = 1 + w.Int64N(10_000)
	case 3:
		r.acquire.KeepMS = 1 + w.Int64N(60_000)
	}
	isLock := w.IntN(12) == 0
	if isLock {
		r.mode = locktable.Exclusive
	}
	w.requests[w.ids] = r
	w.step("acquire %d by session %d, of kind lock: %v: %+v", w.ids, session, isLock, r)
	if isLock {
		w.tb.Acquire(w.now, session, r.acquire)
		return
	}
	w.tb.AcquireReadWrite(w.now, session, r.mode, r.acquire)
}

func (w *manyWorld) release() {
	id, ok := pick(w.Rand, w.holds)
	if !ok {
		return
	}
	h := w.holds[id]
	w.ids++
	w.step("release %d", id)
	if h.entries--; h.entries == 0 {
		delete(w.holds, id)
	}
	w.tb.Release(w.now, h.session, protocol.Release{ID: w.ids, Hold: id})
}

// execute has Redis execute an operation, and returns its result.
func (w *manyWorld) execute(op *redisop.Op) redisop.Result {
	r := redisop.Result{Kind: op.Kind, Name: op.Name, Sent: w.now}
	w.expire()
	if w.isForeign = w.keyUntil == 0 && w.IntN(4) == 0; w.isForeign && op.Kind != redisop.Drop {
		r.Outcome, r.Field, r.TTLMS = redisop.HeldByOther, "another:1", 1000
		if op.Of == redisop.KindReadWrite && op.Kind == redisop.Take {
			if r.Arrived = 1; op.Count != 0 {
				r.Outcome = redisop.KeyMissing
			}
		}
		return r
	}
	if op.Of == redisop.KindReadWrite && op.Kind != redisop.Drop {
		return w.executeReadWrite(op, r)
	}
	switch {
	case op.Kind == redisop.Drop:
		w.keyUntil = 0
	case op.Kind == redisop.Take && (w.keyUntil != 0 || !op.Has(redisop.RequireExisting)), op.Kind == redisop.Renew && w.keyUntil != 0:
		w.keyUntil = w.now + int64(op.LeaseMS)*int64(time.Millisecond)
		w.tokens += uint64(op.Reserve)
		r.Token = w.tokens
	case op.Kind == redisop.Check && w.keyUntil != 0, op.Kind == redisop.Arrive:
	default:
		r.Outcome = redisop.KeyMissing
	}
	return r
}

// executeReadWrite has Redis, where no other host has the lock, set how this host has it.
func (w *manyWorld) executeReadWrite(op *redisop.Op, r redisop.Result) redisop.Result {
	own := w.mode
	if w.keyUntil == 0 {
		own = 0
	}
	isDowngrade := op.Kind == redisop.Take && op.Count == uint32(redisop.SharedMode) && own == uint32(redisop.ExclusiveMode)
	if op.Count != 0 && own != op.Count && !isDowngrade && (own != 0 || op.Want != 0 || op.Kind != redisop.Take || op.Has(redisop.RequireExisting)) {
		r.Outcome = redisop.KeyMissing
		return r
	}
	if op.Kind != redisop.Check {
		w.keyUntil, w.mode = w.now+int64(op.LeaseMS)*int64(time.Millisecond), cmp.Or(op.Count, uint32(op.Want))
		if w.tokens += uint64(op.Reserve); op.Kind == redisop.Take {
			r.Token = w.tokens
		}
	}
	return withMode(op, r)
}

// answer gives the first operation in flight its result.
func (w *manyWorld) answer() {
	if len(w.flying) == 0 {
		return
	}
	op := w.flying[0]
	w.flying = w.flying[1:]
	r := redisop.Result{Kind: op.Kind, Name: op.Name, Sent: w.now, Msg: "Redis is unwell"}
	switch n := w.IntN(40); {
	case n < 34:
		r = w.execute(&op)
	case n < 36:
		if w.IntN(2) == 0 {
			w.step("executed")
			w.execute(&op)
		}
		r.Outcome = redisop.Unknown
	case n < 38:
		r.Outcome = redisop.Retryable
	case n < 39:
		r.Outcome = redisop.NotSent
	default:
		r.Outcome = redisop.Refused
	}
	w.step("<- %v: %v", op.Kind, r.Outcome)
	w.tb.Result(w.now, r)
}

func (w *manyWorld) pass(d time.Duration) {
	w.step("%v pass", d)
	end := w.now + int64(d)
	for {
		at, ok := w.tb.Next()
		if w.tb.Busy() {
			at, ok = w.now, true
		}
		if !ok || at > end {
			break
		}
		w.now = max(w.now, at)
		w.tb.Advance(w.now)
		w.tb.Work(w.now)
		w.settle()
		for len(w.flying) > 0 && w.IntN(3) > 0 {
			w.answer()
			w.settle()
		}
	}
	w.now = end
	w.tb.Advance(w.now)
}

// end ends the session of a client, which has died or is not served any more.
func (w *manyWorld) end() {
	session, _ := pick(w.Rand, w.peers)
	isDead := w.IntN(3) > 0
	w.step("session %d ends, dead: %v", session, isDead)
	w.forget(session)
	if !isDead {
		w.tb.Suspend(w.now, session)
		w.settle()
		w.pass(time.Duration(w.IntN(3000)) * time.Millisecond)
	}
	w.tb.Close(w.now, session)
	delete(w.peers, session)
	w.open()
}

// forget forgets what a client waits for, and believes in.
func (w *manyWorld) forget(session locktable.SessionID) {
	maps.DeleteFunc(w.requests, func(_ uint64, r manyRequest) bool { return r.session == session })
	maps.DeleteFunc(w.holds, func(_ uint64, h *manyHold) bool { return h.session == session })
}

// restart kills the process. Its successor finds the journal, and each client claims what it believes in.
func (w *manyWorld) restart() {
	w.restarts++
	for _, op := range w.flying {
		if w.IntN(2) == 0 {
			w.execute(&op)
		}
	}
	w.step("restart")
	w.flying = nil
	clear(w.requests)
	m := w.journal.snapshot(w.peers)
	w.Shuffle(len(m.Holds), func(i, j int) { m.Holds[i], m.Holds[j] = m.Holds[j], m.Holds[i] })
	w.tb = locktable.New(w.cfg, w.now)
	w.tb.Restore(w.now, m)
	w.tb.Up(w.now, 0, false, w.seed%2 == 0)
	w.settle()
	for session := range maps.Keys(w.peers) {
		w.journal.PutSession(w.tb.Record(session))
	}
	for _, session := range slices.Sorted(maps.Keys(w.peers)) {
		w.tb.Resume(session, w.peers[session])
		c := protocol.Claim{ID: 1 << 40}
		for _, id := range slices.Sorted(maps.Keys(w.holds)) {
			if h := w.holds[id]; h.session == session && w.IntN(10) > 0 {
				c.Holds = append(c.Holds, protocol.ClaimedHold{Hold: id, Entries: h.entries})
			} else if h.session == session {
				delete(w.holds, id)
			}
		}
		w.step("session %d claims %+v", session, c.Holds)
		if fault := w.tb.Claim(w.now, session, &c); fault != "" {
			w.fail("%s", fault)
		}
		w.settle()
	}
}

// drain ends all sessions: nothing is left then.
func (w *manyWorld) drain() {
	for _, session := range slices.Sorted(maps.Keys(w.peers)) {
		w.forget(session)
		w.tb.Close(w.now, session)
		delete(w.peers, session)
		w.settle()
	}
	for range 200 {
		w.settle()
		for len(w.flying) > 0 {
			op := w.flying[0]
			w.flying = w.flying[1:]
			w.tb.Result(w.now, w.execute(&op))
			w.settle()
		}
		w.pass(time.Second)
	}
	if _, ok := w.tb.Info(w.now, manyName); ok {
		w.fail("the table still knows the lock")
	}
	if len(w.journal.locks)+len(w.journal.holds) > 0 {
		w.fail("the journal still has %+v, %+v", w.journal.locks, w.journal.holds)
	}
}

// The table of a host whose clients hold one lock together keeps Exclusion, Validity, The journal is true, and the
// counts of Audit, whatever its clients, Redis and its process do.
func TestManyHoldsBreakNoRule(t *testing.T) {
	t.Parallel()
	first := harness.Seed(t)
	var grants [2]int
	together, restarts := 0, 0
	for seed := first; seed < first+uint64(harness.Pick(150, 5000)); seed++ {
		w := newManyWorld(t, seed)
		for range 300 {
			w.do()
		}
		w.drain()
		grants[0] += w.grants[0]
		grants[1] += w.grants[1]
		together, restarts = max(together, w.together), restarts+w.restarts
	}
	t.Logf("%d exclusive holds, %d shared ones, %d of these together at most; %d restarts", grants[0], grants[1], together, restarts)
	if grants[0] < 500 || grants[1] < 2000 || together < 8 || restarts < 100 {
		t.Error("too little happens")
	}
}

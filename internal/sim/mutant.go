package sim

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Mutant is a faulty table, which breaks one rule: it changes the inputs or the effects of
// a correct one. A checker that never finds a violation proves nothing; it must detect each
// mutant (Mutants, in mutants.go).
type Mutant struct {
	Name     string
	Rule     string // that it breaks
	Detected string // what the violation says: a regular expression
	From     uint64 // the seed at which to begin, where few seeds detect it; 0: the first

	mutate           func(t *mutantTable)
	arrivesByClock   bool // the mutant is in Redis
	lowersLateScores bool // the same
}

// newTable makes the table of a host, with the mutant in front of it.
func (m *Mutant) newTable(cfg locktable.Config, now int64) lockTable {
	t := &mutantTable{cfg: cfg, madeAt: now}
	t.configure(func(*locktable.Config) {})
	if m.mutate != nil {
		m.mutate(t)
	}
	return t
}

// mutantTable is a table, and the functions and flags of the mutant in front of it. What is
// nil or zero changes nothing.
type mutantTable struct {
	*locktable.Table
	cfg    locktable.Config
	madeAt int64

	// Inputs.
	onAcquire     func(now int64, s locktable.SessionID, req *protocol.Acquire) (forward bool)
	onInput       func(now int64) // before Cancel, Close and Suspend
	onDetach      func(now int64, s locktable.SessionID)
	onClose       func(now int64, s locktable.SessionID)
	onResult      func(now int64, r *redisop.Result)
	onList        func(now int64)
	onRestore     func(m *locktable.Snapshot)
	onResume      func(s locktable.SessionID)
	onClaim       func(s locktable.SessionID, req *protocol.Claim)
	onDropWaiters func(now int64)
	onMessage     func(now int64, m *redisop.Message) (forward bool)
	onRoute       func(now int64, ranges []redisop.SlotRange)
	onDown        func(now int64, n redisop.Shard, why string)
	lateBy        int64 // timers

	// Effects.
	onEffect     func(e *locktable.Effect) (times int)
	onUnstored   func() int
	onPutLock    func(slot uint32) (forward bool)
	onPutHold    func(slot uint32) (forward bool)
	onDeleteLock func() (times int)
	onDeleteHold func() (forward bool)

	effects []locktable.Effect // of the last call
	added   []locktable.Effect // for the next call

	restored map[locktable.SessionID][]protocol.ClaimedHold
}

// lease is the configured lease.
func (t *mutantTable) lease() int64 { return int64(t.cfg.Lease) }

// configure makes the table again, with another configuration.
func (t *mutantTable) configure(change func(*locktable.Config)) {
	cfg := t.cfg
	cfg.Journal = &mutantJournal{t.cfg.Journal, t}
	change(&cfg)
	t.Table = locktable.New(cfg, t.madeAt)
}

func (t *mutantTable) Effects() []locktable.Effect {
	if t.onEffect == nil {
		return t.Table.Effects()
	}
	t.effects = append(t.effects[:0], t.added...)
	t.added = nil
	for _, e := range t.Table.Effects() {
		for range t.onEffect(&e) {
			t.effects = append(t.effects, e)
		}
	}
	return t.effects
}

func (t *mutantTable) Result(now int64, r redisop.Result) {
	if t.onResult != nil {
		t.onResult(now, &r)
	}
	t.Table.Result(now, r)
}

func (t *mutantTable) Acquire(now int64, s locktable.SessionID, req protocol.Acquire) {
	if t.onAcquire == nil || t.onAcquire(now, s, &req) {
		t.Table.Acquire(now, s, req)
	}
}

func (t *mutantTable) Cancel(now int64, s locktable.SessionID, req protocol.Cancel) {
	t.beforeInput(now)
	t.Table.Cancel(now, s, req)
}

func (t *mutantTable) Close(now int64, s locktable.SessionID) {
	t.beforeInput(now)
	if t.onClose != nil {
		t.onClose(now, s)
		return
	}
	t.Table.Close(now, s)
}

func (t *mutantTable) Suspend(now int64, s locktable.SessionID) {
	t.beforeInput(now)
	if t.onDetach != nil {
		t.onDetach(now, s)
		return
	}
	t.Table.Suspend(now, s)
}

func (t *mutantTable) beforeInput(now int64) {
	if t.onInput != nil {
		t.onInput(now)
	}
}

func (t *mutantTable) List(now int64, after uint64, yield func(protocol.LockRow) bool) uint64 {
	next := t.Table.List(now, after, yield)
	if t.onList != nil {
		t.onList(now)
	}
	return next
}

func (t *mutantTable) Message(now int64, m redisop.Message) {
	if t.onMessage == nil || t.onMessage(now, &m) {
		t.Table.Message(now, m)
	}
}

func (t *mutantTable) Down(now int64, n redisop.Shard, why string) {
	if t.onDown != nil {
		t.onDown(now, n, why)
		return
	}
	t.Table.Down(now, n, why)
}

func (t *mutantTable) Route(now int64, ranges []redisop.SlotRange) {
	if t.onRoute != nil {
		t.onRoute(now, ranges)
		return
	}
	t.Table.Route(now, ranges)
}

func (t *mutantTable) Next() (int64, bool) {
	at, ok := t.Table.Next()
	return at + t.lateBy, ok
}

func (t *mutantTable) Restore(now int64, m *locktable.Snapshot) {
	t.restored = make(map[locktable.SessionID][]protocol.ClaimedHold)
	for i := range m.Holds {
		h := &m.Holds[i]
		t.restored[h.Session] = append(t.restored[h.Session], protocol.ClaimedHold{Hold: h.ID, Entries: h.Entries})
	}
	if t.onRestore != nil {
		t.onRestore(m)
	}
	t.Table.Restore(now, m)
}

// onRestoredHold changes every hold that is restored.
func (t *mutantTable) onRestoredHold(f func(h *locktable.HoldRecord)) {
	t.onRestore = func(m *locktable.Snapshot) {
		for i := range m.Holds {
			f(&m.Holds[i].HoldRecord)
		}
	}
}

func (t *mutantTable) Resume(s locktable.SessionID, p locktable.Peer) {
	t.Table.Resume(s, p)
	if t.onResume != nil {
		t.onResume(s)
	}
}

func (t *mutantTable) Claim(now int64, s locktable.SessionID, req *protocol.Claim) string {
	if t.onClaim != nil {
		t.onClaim(s, req)
	}
	return t.Table.Claim(now, s, req)
}

func (t *mutantTable) DropWaiters(now int64) {
	if t.onDropWaiters != nil {
		t.onDropWaiters(now)
		return
	}
	t.Table.DropWaiters(now)
}

func (t *mutantTable) Unstored() int {
	if t.onUnstored != nil {
		return t.onUnstored()
	}
	return t.Table.Unstored()
}

// mutantJournal is the journal of a table with a mutant.
type mutantJournal struct {
	locktable.Journal
	t *mutantTable
}

func (j *mutantJournal) PutLock(slot uint32, r *locktable.LockRecord) uint32 {
	if j.t.onPutLock != nil && !j.t.onPutLock(slot) {
		return slot
	}
	return j.Journal.PutLock(slot, r)
}

func (j *mutantJournal) PutHold(slot, lock uint32, r *locktable.HoldRecord) uint32 {
	if j.t.onPutHold != nil && !j.t.onPutHold(slot) {
		return slot
	}
	return j.Journal.PutHold(slot, lock, r)
}

func (j *mutantJournal) DeleteLock(slot uint32) {
	times := 1
	if j.t.onDeleteLock != nil {
		times = j.t.onDeleteLock()
	}
	for range times {
		j.Journal.DeleteLock(slot)
	}
}

func (j *mutantJournal) DeleteHold(slot uint32) {
	if j.t.onDeleteHold == nil || j.t.onDeleteHold() {
		j.Journal.DeleteHold(slot)
	}
}

// changeRequest returns an onAcquire that changes the request.
func changeRequest(change func(req *protocol.Acquire)) func(int64, locktable.SessionID, *protocol.Acquire) bool {
	return func(_ int64, _ locktable.SessionID, req *protocol.Acquire) bool {
		change(req)
		return true
	}
}

// ignore returns an onMessage that leaves messages of one kind out.
func ignore(kind redisop.MessageKind) func(int64, *redisop.Message) bool {
	return func(_ int64, m *redisop.Message) bool { return m.Kind != kind }
}

// change returns an onEffect that changes effects, and leaves none out.
func change(f func(e *locktable.Effect)) func(*locktable.Effect) int {
	return func(e *locktable.Effect) int {
		f(e)
		return 1
	}
}

// without returns an onEffect that leaves effects out.
func without(isLeftOut func(e *locktable.Effect) bool) func(*locktable.Effect) int {
	return func(e *locktable.Effect) int { return btoi(!isLeftOut(e)) }
}

// twice returns an onEffect that repeats effects.
func twice(isRepeated func(e *locktable.Effect) bool) func(*locktable.Effect) int {
	return func(e *locktable.Effect) int { return 1 + btoi(isRepeated(e)) }
}

// is returns a predicate of effects of one kind.
func is(kind locktable.EffectKind) func(*locktable.Effect) bool {
	return func(e *locktable.Effect) bool { return e.Kind == kind }
}

// isLost returns a predicate of Lost effects with a reason.
func isLost(reason protocol.Reason) func(*locktable.Effect) bool {
	return func(e *locktable.Effect) bool { return e.Kind == locktable.Lost && e.Reason == reason }
}

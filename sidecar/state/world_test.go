package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// world is what a file should have.
type world struct {
	locks                     map[string]lockOf // by name
	holds                     map[uint64]heldLock
	sessions                  map[locktable.SessionID]Session
	lastHoldID, lastSessionID uint64
	redis                     Redis
}

type lockOf struct {
	maxHoldID uint64
	kind      redisop.LockKind
	forced    uint64
}

type heldLock struct {
	name string
	locktable.HoldRecord
}

func emptyWorld() world {
	return world{locks: map[string]lockOf{}, holds: map[uint64]heldLock{}, sessions: map[locktable.SessionID]Session{}}
}

func (w world) clone() world {
	w.locks, w.holds, w.sessions = maps.Clone(w.locks), maps.Clone(w.holds), maps.Clone(w.sessions)
	return w
}

func (w world) equal(v world) bool {
	return maps.Equal(w.locks, v.locks) && maps.Equal(w.holds, v.holds) && maps.Equal(w.sessions, v.sessions) &&
		w.lastHoldID == v.lastHoldID && w.lastSessionID == v.lastSessionID && w.redis == v.redis
}

// diff returns in a few lines where two worlds differ.
func (w world) diff(v world) string {
	var b strings.Builder
	diffMaps(&b, "lock", w.locks, v.locks)
	diffMaps(&b, "hold", w.holds, v.holds)
	diffMaps(&b, "session", w.sessions, v.sessions)
	if w.lastHoldID != v.lastHoldID || w.lastSessionID != v.lastSessionID || w.redis != v.redis {
		fmt.Fprintf(&b, "last hold %d, %d; last session %d, %d; Redis %+v, %+v\n", w.lastHoldID, v.lastHoldID, w.lastSessionID, v.lastSessionID, w.redis, v.redis)
	}
	return b.String()
}

func diffMaps[K, V comparable](b *strings.Builder, what string, w, v map[K]V) {
	for key, r := range w {
		if o, ok := v[key]; !ok || o != r {
			fmt.Fprintf(b, "%s %.40v:\n   %+v\n   %v %+v\n", what, key, r, ok, o)
		}
	}
	for key := range v {
		if _, ok := w[key]; !ok {
			fmt.Fprintf(b, "%s %.40v only in the second\n", what, key)
		}
	}
}

// recovered is what a successor recovers: no last number is lower than one of a record.
func (w world) recovered() world {
	w = w.clone()
	for _, l := range w.locks {
		w.lastHoldID = max(w.lastHoldID, l.maxHoldID)
	}
	for id := range w.sessions {
		w.lastSessionID = max(w.lastSessionID, uint64(id))
	}
	return w
}

// holdsOf returns the ids of the holds of a lock, in their order.
func (w world) holdsOf(name string) (ids []uint64) {
	for id, h := range w.holds {
		if h.name == name {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// worldIn is the world that a successor finds in an image.
func worldIn(img image, own identity) (world, error) {
	c := img.read(own)
	if c.damaged > 0 {
		return world{}, fmt.Errorf("%d records are damaged", c.damaged)
	}
	return worldOf(c.recovered)
}

func worldOf(r Recovered) (world, error) {
	w, m := emptyWorld(), &r.Snapshot
	w.lastHoldID, w.lastSessionID, w.redis = m.LastHoldID, r.LastSessionID, r.Redis
	for _, l := range m.Locks {
		if _, isTwice := w.locks[l.Name]; isTwice {
			return w, fmt.Errorf("lock %.40q is recovered twice", l.Name)
		}
		w.locks[l.Name] = lockOf{l.MaxHoldID, l.Kind, l.Forced}
	}
	for _, h := range m.Holds {
		if _, isTwice := w.holds[h.ID]; isTwice {
			return w, fmt.Errorf("hold %d is recovered twice", h.ID)
		}
		if int(h.Lock) >= len(m.Locks) {
			return w, fmt.Errorf("hold %d is of lock %d of %d", h.ID, h.Lock, len(m.Locks))
		}
		w.holds[h.ID] = heldLock{m.Locks[h.Lock].Name, h.HoldRecord}
	}
	if len(r.Sessions) != len(m.Sessions) {
		return w, fmt.Errorf("%d sessions and %d in Snapshot", len(r.Sessions), len(m.Sessions))
	}
	for i, s := range r.Sessions {
		if o := m.Sessions[i]; o.SessionRecord != s.SessionRecord || o.Peer != s.Peer {
			return w, fmt.Errorf("session %d is %+v, and in Snapshot %+v", i, s, o)
		}
		if _, isTwice := w.sessions[s.ID]; isTwice {
			return w, fmt.Errorf("session %d is recovered twice", s.ID)
		}
		w.sessions[s.ID] = s
	}
	return w, nil
}

// names are those of all locks in the tests: of all lengths at which a text needs one cell
// more, and some others.
var names = func() (all []string) {
	for i, n := range []int{1, 7, 8, 9, 31, 32, 33, 40, 151, 152, 153, 272, 273, 392, 393, 511, 512} {
		for j := range 3 {
			s := fmt.Sprintf("%c%d/", 'a'+i, j)
			if n < len(s) {
				s = string(rune('A' + 3*i + j))
			}
			all = append(all, s+strings.Repeat("é", (n-len(s))/2)+strings.Repeat("x", (n-len(s))%2))
		}
	}
	return all
}()

const sessionIDs = 12

// call is one call of a File.
type call struct {
	method  method
	name    string // of a lock
	id      uint64
	kind    redisop.LockKind // of a lock
	forced  uint64           // of a lock
	hold    locktable.HoldRecord
	session Session
	redis   Redis
}

type method int

const (
	putLock method = iota
	deleteLock
	putHold
	deleteHold
	openSession
	putSession
	closeSession
	putLastHoldID
	putLastSessionID
	putRedis
)

// source generates calls. The same seed generates the same calls from the same world.
type source struct {
	*rand.Rand
	id   uint64
	used map[uint64]bool // hold numbers
}

func newSource(seed uint64, w world) *source {
	g := &source{rand.New(rand.NewPCG(seed, 1)), w.recovered().lastHoldID, map[uint64]bool{}}
	for id := range w.holds {
		g.used[id] = true
	}
	return g
}

func (g *source) next() uint64 { g.id++; return g.id }

func (g *source) newHold(id uint64, kind redisop.LockKind, w world) (h locktable.HoldRecord) {
	g.used[id] = true
	h.ID, h.Token, h.Owner = id, g.Uint64(), g.Uint64()
	h.Session = locktable.SessionID(1 + g.IntN(sessionIDs))
	h.Granted = g.Int64N(1 << 50)
	h.Lease = locktable.LeaseKind(g.IntN(2))
	h.Permits = uint16(1 + g.IntN(1<<16-1))
	h.LeaseMS = 1
	switch kind {
	case redisop.KindReadWrite:
		h.Mode = locktable.Mode(g.IntN(2))
	case redisop.KindPermits:
		h.Mode, h.Capacity = locktable.Units, uint16(1+g.IntN(1<<16-1))
	}
	if g.IntN(3) == 0 {
		h.KeepUntil = 1 + g.Int64N(1<<50)
	}
	g.vary(&h)
	if _, isOpen := w.sessions[h.Session]; !isOpen && g.IntN(20) > 0 {
		h.Phase = locktable.HoldCrashDelayed
	}
	h.Entries = 1
	return h
}

// vary changes what may change of a hold.
func (g *source) vary(h *locktable.HoldRecord) {
	for _, change := range []func(){
		func() { h.Deadline = g.Int64N(1 << 50) },
		func() { h.End = g.Int64N(1 << 50) },
		func() { h.LeaseSeq = g.Uint32() },
		func() { h.LeaseMS = 1 + g.Uint32N(1<<31) },
		func() { h.Entries = 1 + g.Uint32N(1<<31) },
		func() { h.CrashDelayMS = g.Uint32() },
		func() { h.Phase += locktable.HoldPhase(g.IntN(int(lastPhase(h)-h.Phase) + 1)) },
		func() { h.InDoubt = !h.InDoubt },
	} {
		if g.IntN(2) == 0 {
			change()
		}
	}
}

// lastPhase is the last phase that a hold may reach.
func lastPhase(h *locktable.HoldRecord) locktable.HoldPhase {
	if h.KeepUntil == 0 {
		return locktable.HoldGivenUp
	}
	return locktable.HoldKept
}

var sessionPhases = []locktable.SessionPhase{locktable.SessionServing, locktable.SessionServing, locktable.SessionGivenUp, locktable.SessionUnserved}

func (g *source) call(w world) call {
	switch g.IntN(20) {
	case 0:
		return call{method: putLastHoldID, id: max(w.lastHoldID, g.id)}
	case 1:
		return call{method: putLastSessionID, id: max(w.lastSessionID, uint64(g.IntN(50)))}
	case 2:
		return call{method: putRedis, redis: Redis{
			RunID: strings.Repeat("r", g.IntN(maxID+1)), ReplID: strings.Repeat("p", g.IntN(maxID+1)),
			ClientID: g.Int64(), Floor: g.Int64(), FloorAt: g.Int64(),
		}}
	case 3, 4, 5:
		return g.sessionCall(w)
	}
	c := call{name: names[g.IntN(len(names))]}
	l, isStored := w.locks[c.name]
	holds := w.holdsOf(c.name)
	if c.kind = l.kind; len(holds) == 0 && g.IntN(3) == 0 {
		c.kind = redisop.LockKind(g.IntN(3))
	}
	if c.forced = l.forced; c.kind == redisop.KindLock {
		c.forced = 0
	} else if g.IntN(3) == 0 {
		c.forced = g.Uint64N(l.maxHoldID + 1)
	}
	if !isStored {
		c.id = g.next()
		return c
	}
	switch n := g.IntN(20); {
	case n < 5 && len(holds) == 0:
		c.method = deleteLock
	case n < 6 && len(holds) > 0:
		c.method, c.id = deleteHold, holds[g.IntN(len(holds))]
	case n < 12 && len(holds) < 4:
		if g.used[l.maxHoldID] || c.kind != l.kind {
			c.id = g.next()
			break
		}
		c.method, c.hold = putHold, g.newHold(l.maxHoldID, l.kind, w)
	case n < 14 || len(holds) == 0:
		c.id = g.next()
	default:
		c.method, c.hold = putHold, w.holds[holds[g.IntN(len(holds))]].HoldRecord
		g.vary(&c.hold)
	}
	return c
}

func (g *source) sessionCall(w world) call {
	id := locktable.SessionID(1 + g.IntN(sessionIDs))
	s, isOpen := w.sessions[id]
	c := call{method: openSession, session: s}
	switch {
	case !isOpen || g.IntN(6) == 0:
		c.session = Session{
			SessionRecord: locktable.SessionRecord{ID: id, LeaseSent: s.LeaseSent + g.Int64N(1<<40), LeaseSeq: s.LeaseSeq + 1, Phase: sessionPhases[g.IntN(4)]},
			Peer: locktable.Peer{
				PID: g.Int64N(1 << 22), UID: g.Int64N(1 << 32),
				Cmd: strings.Repeat("c", g.IntN(65)), Client: strings.Repeat("k", g.IntN(129)),
			},
			Process: processIn(g.Uint64(), g.Uint64()), Resumable: g.IntN(2) == 0,
		}
		return c
	case g.IntN(4) == 0:
		for _, h := range w.holds {
			if h.Session == id && !h.Phase.IsOrphan() {
				return call{method: putLastHoldID, id: max(w.lastHoldID, g.id)}
			}
		}
		c.method = closeSession
		return c
	}
	c.method = putSession
	c.session.LeaseSent += g.Int64N(1 << 40)
	c.session.LeaseSeq++
	c.session.Phase = sessionPhases[g.IntN(4)]
	return c
}

// steps are the changes that the call makes to a world one after the other, some of which
// may change nothing.
func (c call) steps(w world) (all []func(*world)) {
	then := func(change func(*world)) { all = append(all, change) }
	hold := func(change func(*heldLock)) {
		then(func(w *world) {
			h := w.holds[c.hold.ID]
			change(&h)
			w.holds[c.hold.ID] = h
		})
	}
	switch c.method {
	case putLock:
		if l, isStored := w.locks[c.name]; isStored {
			then(func(w *world) { w.locks[c.name] = lockOf{c.id, l.kind, l.forced} })
			if l.kind != redisop.KindLock && c.kind != redisop.KindLock {
				then(func(w *world) { w.locks[c.name] = lockOf{c.id, l.kind, c.forced} })
			}
		}
		then(func(w *world) { w.locks[c.name] = lockOf{c.id, c.kind, c.forced} })
	case deleteLock:
		then(func(w *world) { delete(w.locks, c.name) })
	case putHold:
		if _, isStored := w.holds[c.hold.ID]; !isStored {
			then(func(w *world) { w.holds[c.hold.ID] = heldLock{c.name, c.hold} })
			break
		}
		hold(func(h *heldLock) { h.Deadline = c.hold.Deadline })
		hold(func(h *heldLock) { h.End = c.hold.End })
		hold(func(h *heldLock) { h.LeaseSeq, h.LeaseMS = c.hold.LeaseSeq, c.hold.LeaseMS })
		hold(func(h *heldLock) { h.Entries, h.CrashDelayMS = c.hold.Entries, c.hold.CrashDelayMS })
		hold(func(h *heldLock) { h.Phase, h.InDoubt = c.hold.Phase, c.hold.InDoubt })
	case deleteHold:
		then(func(w *world) { delete(w.holds, c.id) })
	case openSession:
		then(func(w *world) { w.sessions[c.session.ID] = c.session })
	case putSession:
		then(func(w *world) {
			s := w.sessions[c.session.ID]
			s.LeaseSent = c.session.LeaseSent
			w.sessions[c.session.ID] = s
		})
		then(func(w *world) { w.sessions[c.session.ID] = c.session })
	case closeSession:
		then(func(w *world) { delete(w.sessions, c.session.ID) })
	case putLastHoldID:
		then(func(w *world) { w.lastHoldID = c.id })
	case putLastSessionID:
		then(func(w *world) { w.lastSessionID = c.id })
	case putRedis:
		then(func(w *world) { w.redis = c.redis })
	}
	return all
}

// stages are the worlds that a successor may find if the process ends during the call: the
// one before, those in between, and the one after.
func (c call) stages(w world) []world {
	all := []world{w}
	for _, step := range c.steps(w) {
		next := all[len(all)-1].clone()
		step(&next)
		all = append(all, next)
	}
	return slices.CompactFunc(all, world.equal)
}

// apply makes the changes of the call to the world.
func (c call) apply(w *world) {
	for _, step := range c.steps(*w) {
		step(w)
	}
}

// slots are those of the locks and holds that are stored.
type slots struct {
	locks map[string]uint32
	holds map[uint64]uint32
}

func noSlots() slots { return slots{map[string]uint32{}, map[uint64]uint32{}} }

// missing is the number of locks of a world of which something has no slot.
func (at slots) missing(w world) (n int) {
	lacks := map[string]bool{}
	for name := range w.locks {
		if at.locks[name] == 0 {
			lacks[name] = true
		}
	}
	for id, h := range w.holds {
		if at.holds[id] == 0 {
			lacks[h.name] = true
		}
	}
	return len(lacks)
}

// store stores a lock of a world and its holds, as a table does that stores again what found
// no room. It reports whether there was room.
func (at slots) store(f *File, w world, name string) bool {
	slot := f.PutLock(at.locks[name], &locktable.LockRecord{Name: name, MaxHoldID: w.locks[name].maxHoldID, Kind: w.locks[name].kind, Forced: w.locks[name].forced})
	if slot == 0 {
		return false
	}
	at.locks[name] = slot
	for _, id := range w.holdsOf(name) {
		h := w.holds[id].HoldRecord
		hold := f.PutHold(at.holds[id], slot, &h)
		if hold == 0 {
			return false
		}
		at.holds[id] = hold
	}
	return true
}

// on makes the call on a file, and reports whether there was room for what it stores. What
// has no slot, because there was none, is neither changed nor deleted.
func (c call) on(f *File, at slots) bool {
	switch c.method {
	case putLock:
		slot := f.PutLock(at.locks[c.name], &locktable.LockRecord{Name: c.name, MaxHoldID: c.id, Kind: c.kind, Forced: c.forced})
		if slot == 0 {
			return false
		}
		at.locks[c.name] = slot
	case deleteLock:
		if at.locks[c.name] != 0 {
			f.DeleteLock(at.locks[c.name])
			delete(at.locks, c.name)
		}
	case putHold:
		if at.locks[c.name] == 0 {
			return false
		}
		slot := f.PutHold(at.holds[c.hold.ID], at.locks[c.name], &c.hold)
		if slot == 0 {
			return false
		}
		at.holds[c.hold.ID] = slot
	case deleteHold:
		if at.holds[c.id] != 0 {
			f.DeleteHold(at.holds[c.id])
			delete(at.holds, c.id)
		}
	case openSession:
		f.OpenSession(c.session)
		return f.sessions[c.session.ID] != 0
	case putSession:
		f.PutSession(c.session.SessionRecord)
	case closeSession:
		f.CloseSession(c.session.ID)
	case putLastHoldID:
		f.PutLastHoldID(c.id)
	case putLastSessionID:
		f.PutLastSessionID(c.id)
	case putRedis:
		f.PutRedis(c.redis)
	}
	return true
}

// recoverFrom returns the world that an opened file has recovered, and the slots in it.
func recoverFrom(f *File) (world, slots, error) {
	r := f.Recovered()
	at := noSlots()
	for _, l := range r.Snapshot.Locks {
		at.locks[l.Name] = l.Slot
	}
	for _, h := range r.Snapshot.Holds {
		at.holds[h.ID] = h.Slot
	}
	w, err := worldOf(r)
	return w, at, err
}

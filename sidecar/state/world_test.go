package state

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// world is what a file should remember.
type world struct {
	locks             map[string]locktable.LockRecord
	sessions          map[locktable.SessionID]Session
	last, lastSession uint64
	redis             Redis
}

func emptyWorld() world {
	return world{locks: map[string]locktable.LockRecord{}, sessions: map[locktable.SessionID]Session{}}
}

func (w world) clone() world {
	w.locks, w.sessions = maps.Clone(w.locks), maps.Clone(w.sessions)
	return w
}

func (w world) equal(v world) bool {
	return maps.Equal(w.locks, v.locks) && maps.Equal(w.sessions, v.sessions) &&
		w.last == v.last && w.lastSession == v.lastSession && w.redis == v.redis
}

// diff says in a few lines where two worlds differ.
func (w world) diff(v world) string {
	var b strings.Builder
	for name, r := range w.locks {
		if o, ok := v.locks[name]; !ok || o != r {
			fmt.Fprintf(&b, "lock %.40q:\n   %+v\n   %v %+v\n", name, r, ok, o)
		}
	}
	for name := range v.locks {
		if _, ok := w.locks[name]; !ok {
			fmt.Fprintf(&b, "lock %.40q only in the second\n", name)
		}
	}
	for id, s := range w.sessions {
		if o, ok := v.sessions[id]; !ok || o != s {
			fmt.Fprintf(&b, "session %d:\n   %+v\n   %v %+v\n", id, s, ok, o)
		}
	}
	for id := range v.sessions {
		if _, ok := w.sessions[id]; !ok {
			fmt.Fprintf(&b, "session %d only in the second\n", id)
		}
	}
	if w.last != v.last || w.lastSession != v.lastSession || w.redis != v.redis {
		fmt.Fprintf(&b, "last %d, %d; sessions %d, %d; Redis %+v, %+v\n", w.last, v.last, w.lastSession, v.lastSession, w.redis, v.redis)
	}
	return b.String()
}

// remembered is what a successor is to be left: no number lower than one that is left.
func (w world) remembered() world {
	w = w.clone()
	for _, r := range w.locks {
		w.last = max(w.last, r.Top)
	}
	for id := range w.sessions {
		w.lastSession = max(w.lastSession, uint64(id))
	}
	return w
}

// worldIn is the world that a successor finds in an image.
func worldIn(img image, own identity) (world, error) {
	c := img.read(own)
	if c.damaged > 0 {
		return world{}, fmt.Errorf("%d records are damaged", c.damaged)
	}
	return worldOf(c.left)
}

func worldOf(left Left) (world, error) {
	w := emptyWorld()
	w.last, w.lastSession, w.redis = left.Memory.Last, left.LastSession, left.Redis
	for _, r := range left.Memory.Locks {
		if _, twice := w.locks[r.Name]; twice {
			return w, fmt.Errorf("lock %.40q is left twice", r.Name)
		}
		w.locks[r.Name] = r.LockRecord
	}
	if len(left.Sessions) != len(left.Memory.Sessions) {
		return w, fmt.Errorf("%d sessions and %d in Memory", len(left.Sessions), len(left.Memory.Sessions))
	}
	for i, s := range left.Sessions {
		if m := left.Memory.Sessions[i]; m.SessionRecord != s.SessionRecord || m.Peer != s.Peer {
			return w, fmt.Errorf("session %d is %+v, and in Memory %+v", i, s, m)
		}
		if _, twice := w.sessions[s.ID]; twice {
			return w, fmt.Errorf("session %d is left twice", s.ID)
		}
		w.sessions[s.ID] = s
	}
	return w, nil
}

// names are those of every lock in the tests: of all lengths at which a text needs
// one cell more, and some others.
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

// deed is one call of a File.
type deed struct {
	do      what
	name    string // lock
	lock    locktable.LockRecord
	session Session
	num     uint64
	redis   Redis
}

type what int

const (
	keepLock what = iota
	forgetLock
	openSession
	keepSession
	closeSession
	keepLast
	keepLastSession
	keepRedis
)

// source makes up deeds. The same seed makes the same of the same world.
type source struct {
	*rand.Rand
	num uint64
}

func newSource(seed uint64, w world) *source {
	return &source{rand.New(rand.NewPCG(seed, 1)), w.remembered().last}
}

func (g *source) next() uint64 { g.num++; return g.num }

func (g *source) hold(w world) (h locktable.HoldRecord) {
	h.Num, h.Token, h.Owner = g.next(), g.Uint64(), g.Uint64()
	h.Session = locktable.SessionID(1 + g.IntN(sessionIDs))
	if _, open := w.sessions[h.Session]; !open && g.IntN(20) > 0 {
		h.Orphan = true
	}
	h.Granted = g.Int64N(1 << 50)
	g.vary(&h)
	h.Count = 1
	return h
}

// vary changes what may change of a hold.
func (g *source) vary(h *locktable.HoldRecord) {
	for _, change := range []func(){
		func() { h.Deadline = g.Int64N(1 << 50) },
		func() { h.End = g.Int64N(1 << 50) },
		func() { h.Tells = g.Uint32() },
		func() { h.LeaseMS = g.Uint32() },
		func() { h.Count = 1 + g.Uint32N(1<<31) },
		func() { h.CrashDelayMS = g.Uint32() },
		func() { h.Orphan = true },
		func() { h.InDoubt = !h.InDoubt },
	} {
		if g.IntN(2) == 0 {
			change()
		}
	}
}

func (g *source) deed(w world) deed {
	switch g.IntN(20) {
	case 0:
		return deed{do: keepLast, num: max(w.last, g.num)}
	case 1:
		return deed{do: keepLastSession, num: max(w.lastSession, uint64(g.IntN(50)))}
	case 2:
		return deed{do: keepRedis, redis: Redis{
			RunID: strings.Repeat("r", g.IntN(maxID+1)), ReplID: strings.Repeat("p", g.IntN(maxID+1)),
			ClientID: g.Int64(), Floor: g.Int64(), FloorAt: g.Int64(),
		}}
	case 3, 4, 5:
		id := locktable.SessionID(1 + g.IntN(sessionIDs))
		s, open := w.sessions[id]
		d := deed{do: openSession, session: s}
		switch {
		case !open || g.IntN(6) == 0:
			d.session = Session{
				SessionRecord: locktable.SessionRecord{ID: id, Told: s.Told + g.Int64N(1<<40), Tells: s.Tells + 1, Detached: g.IntN(8) == 0},
				Peer: locktable.Peer{
					PID: g.Int64N(1 << 22), UID: g.Int64N(1 << 32),
					Cmd: strings.Repeat("c", g.IntN(65)), Client: strings.Repeat("k", g.IntN(129)),
				},
				Process: Process{Pidfd: g.Uint64(), Start: g.Uint64()}, Resumable: g.IntN(2) == 0,
			}
			return d
		case g.IntN(4) == 0:
			for _, r := range w.locks {
				if h := &r.Hold; h.Num != 0 && h.Session == id && !h.Orphan {
					return deed{do: keepLast, num: max(w.last, g.num)}
				}
			}
			d.do = closeSession
			return d
		}
		d.do = keepSession
		d.session.Told += g.Int64N(1 << 40)
		d.session.Tells++
		d.session.Detached = g.IntN(8) == 0
		return d
	}
	d := deed{name: names[g.IntN(len(names))]}
	r, kept := w.locks[d.name]
	d.lock = r
	if !kept {
		d.lock = locktable.LockRecord{Name: d.name, Top: g.next()}
		if g.IntN(8) > 0 {
			d.lock.Hold = g.hold(w)
			d.lock.Top = d.lock.Hold.Num
		}
		return d
	}
	switch n := g.IntN(20); {
	case n < 6:
		d.do = forgetLock
	case n < 12:
		d.lock.Hold = g.hold(w)
		d.lock.Top = g.num
	case n < 14:
		d.lock.Hold = locktable.HoldRecord{}
		if n == 13 {
			d.lock.Top = g.next()
		}
	case n == 14:
		d.lock.Top = g.next()
	case n == 15:
		if other := names[g.IntN(len(names))]; w.locks[other].Name == "" {
			d.lock.Name = other
			d.lock.Top = g.next()
			if d.lock.Hold.Num != 0 {
				d.lock.Hold.Num = d.lock.Top // the old one is left while the new one appears
			}
		}
	default:
		if d.lock.Hold.Num != 0 {
			g.vary(&d.lock.Hold)
		}
	}
	return d
}

// steps are the changes that the deed makes to a world one after the other, some of
// which may change nothing.
func (d deed) steps(w world) (all []func(*world)) {
	then := func(change func(*world)) { all = append(all, change) }
	lock := func(change func(*locktable.LockRecord)) {
		then(func(w *world) {
			r := w.locks[d.name]
			change(&r)
			w.locks[d.name] = r
		})
	}
	switch d.do {
	case keepLock:
		r, kept := w.locks[d.name]
		h := &d.lock.Hold
		switch {
		case !kept:
			then(func(w *world) { w.locks[d.name] = d.lock })
		case d.lock.Name != d.name:
			then(func(w *world) { w.locks[d.lock.Name] = d.lock })
			then(func(w *world) { delete(w.locks, d.name) })
		case r.Hold.Num != h.Num || h.Num == 0:
			lock(func(r *locktable.LockRecord) { r.Hold = locktable.HoldRecord{} })
			lock(func(r *locktable.LockRecord) { r.Top = d.lock.Top })
			lock(func(r *locktable.LockRecord) { r.Hold = *h })
		default:
			lock(func(r *locktable.LockRecord) { r.Top = d.lock.Top })
			lock(func(r *locktable.LockRecord) { r.Hold.Deadline = h.Deadline })
			lock(func(r *locktable.LockRecord) { r.Hold.End = h.End })
			lock(func(r *locktable.LockRecord) { r.Hold.Tells, r.Hold.LeaseMS = h.Tells, h.LeaseMS })
			lock(func(r *locktable.LockRecord) { r.Hold.Count, r.Hold.CrashDelayMS = h.Count, h.CrashDelayMS })
			lock(func(r *locktable.LockRecord) { r.Hold.Orphan, r.Hold.InDoubt = h.Orphan, h.InDoubt })
		}
	case forgetLock:
		then(func(w *world) { delete(w.locks, d.name) })
	case openSession:
		then(func(w *world) { w.sessions[d.session.ID] = d.session })
	case keepSession:
		then(func(w *world) {
			s := w.sessions[d.session.ID]
			s.Told = d.session.Told
			w.sessions[d.session.ID] = s
		})
		then(func(w *world) { w.sessions[d.session.ID] = d.session })
	case closeSession:
		then(func(w *world) { delete(w.sessions, d.session.ID) })
	case keepLast:
		then(func(w *world) { w.last = d.num })
	case keepLastSession:
		then(func(w *world) { w.lastSession = d.num })
	case keepRedis:
		then(func(w *world) { w.redis = d.redis })
	}
	return all
}

// stages are the worlds that a successor may meet if the process ends during the
// deed: the one before, those in between, and the one after.
func (d deed) stages(w world) []world {
	all := []world{w}
	for _, step := range d.steps(w) {
		next := all[len(all)-1].clone()
		step(&next)
		all = append(all, next)
	}
	return slices.CompactFunc(all, world.equal)
}

// apply does the deed to the world.
func (d deed) apply(w *world) {
	for _, step := range d.steps(*w) {
		step(w)
	}
}

// slots are those of the locks that are kept.
type slots map[string]uint32

// doIn does the deed and tells whether there was room for what it keeps.
func (d deed) doIn(f *File, at slots) bool {
	switch d.do {
	case keepLock:
		slot := f.KeepLock(at[d.name], &d.lock)
		delete(at, d.name)
		if slot == 0 {
			return false
		}
		at[d.lock.Name] = slot
	case forgetLock:
		f.ForgetLock(at[d.name])
		delete(at, d.name)
	case openSession:
		f.OpenSession(d.session)
		return f.sessions[d.session.ID] != 0
	case keepSession:
		f.KeepSession(d.session.SessionRecord)
	case closeSession:
		f.CloseSession(d.session.ID)
	case keepLast:
		f.KeepLast(d.num)
	case keepLastSession:
		f.KeepLastSession(d.num)
	case keepRedis:
		f.KeepRedis(d.redis)
	}
	return true
}

// takenOver is the world that an opened file has left, and the slots of its locks.
func takenOver(f *File) (world, slots, error) {
	left := f.Left()
	at := slots{}
	for _, r := range left.Memory.Locks {
		at[r.Name] = r.Slot
	}
	w, err := worldOf(left)
	return w, at, err
}

package locktable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// pairRig is two hosts that share the semaphore "api", or the read/write lock of that name, in the model of Redis. A test says
// when Redis executes what, and when messages arrive.
type pairRig struct {
	*testing.T
	now       int64
	semaphore redis.Semaphore
	lock      redis.ReadWrite
	counter   redis.Counter
	hosts     [2]*pairHost
}

type pairHost struct {
	rig     *pairRig
	owner   redis.Owner
	tb      *connectedTable
	journal *recordJournal
	ops     []redisop.Op // in flight
	inbox   []redisop.Message
	log     []string
	holds   map[locktable.SessionID]uint64
	ids     uint64
	isDeaf  bool // it receives no messages
}

const startOfPair = int64(time.Hour)

func newPermitsRig(t *testing.T) (r *pairRig, a, b *pairHost) {
	r = &pairRig{T: t, now: startOfPair}
	for i := range r.hosts {
		h := &pairHost{rig: r, owner: redis.Owner(i), journal: newRecordJournal(), holds: map[locktable.SessionID]uint64{}}
		h.tb = connect(newTable(locktable.Config{Journal: h.journal}, r.now))
		h.begin()
		r.hosts[i] = h
	}
	return r, r.hosts[0], r.hosts[1]
}

func (h *pairHost) begin() {
	h.tb.Up(h.rig.now, 0, false, true)
	for s := range locktable.SessionID(4) {
		h.tb.Open(h.rig.now, s+1, locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)})
	}
}

// acquire has a session wait for permits.
func (h *pairHost) acquire(s locktable.SessionID, permits, of uint16, opts ...opt) (id uint64) {
	h.ids++
	req := protocol.Acquire{ID: h.ids, Name: "api", WaitMS: protocol.Forever}
	for _, o := range opts {
		o(&req)
	}
	h.tb.AcquirePermits(h.rig.now, s, protocol.AcquirePermits{Acquire: req, Permits: permits, Of: of})
	h.collect()
	return req.ID
}

// reads has a session wait to read, and writes to write.
func (h *pairHost) reads(s locktable.SessionID, opts ...opt) (id uint64) {
	return h.acquireAs(locktable.Shared, s, opts...)
}

func (h *pairHost) writes(s locktable.SessionID, opts ...opt) (id uint64) {
	return h.acquireAs(locktable.Exclusive, s, opts...)
}

func (h *pairHost) acquireAs(mode locktable.Mode, s locktable.SessionID, opts ...opt) (id uint64) {
	h.ids++
	req := protocol.Acquire{ID: h.ids, Name: "api", WaitMS: protocol.Forever}
	for _, o := range opts {
		o(&req)
	}
	h.tb.AcquireReadWrite(h.rig.now, s, mode, req)
	h.collect()
	return req.ID
}

// cancel ends a request of a session.
func (h *pairHost) cancel(s locktable.SessionID, id uint64) {
	h.tb.Cancel(h.rig.now, s, protocol.Cancel{Target: id})
	h.collect()
}

// release releases what a session was granted last.
func (h *pairHost) release(s locktable.SessionID) {
	h.tb.Release(h.rig.now, s, protocol.Release{Hold: h.holds[s]})
	h.collect()
}

func (h *pairHost) collect() {
	for _, e := range h.tb.Effects() {
		switch e.Kind {
		case locktable.Redis:
			h.ops = append(h.ops, e.Op)
		case locktable.Granted:
			h.log = append(h.log, fmt.Sprintf("s%d granted", e.Session))
			h.holds[e.Session] = e.Hold
		case locktable.Refusal:
			h.log = append(h.log, fmt.Sprintf("s%d refused %s: %s", e.Session, e.Code, e.Msg))
		case locktable.Lost:
			h.log = append(h.log, fmt.Sprintf("s%d lost %s", e.Session, e.Reason))
		case locktable.Confirmed:
			h.log = append(h.log, fmt.Sprintf("s%d confirmed", e.Session))
		}
	}
}

// want compares what the clients of a host were sent since the last want.
func (h *pairHost) want(lines ...string) {
	h.rig.Helper()
	h.collect()
	if !slices.Equal(h.log, lines) {
		h.rig.Fatalf("host %d sends %q, want %q\n%s", h.owner, h.log, lines, h.tb.Text(h.rig.now, "api"))
	}
	h.log = nil
}

// quiet checks that no operation is in flight.
func (h *pairHost) quiet() {
	h.rig.Helper()
	if h.collect(); len(h.ops) > 0 {
		h.rig.Fatalf("host %d has sent %+v", h.owner, h.ops)
	}
}

// sent returns the operation in flight.
func (h *pairHost) sent() redisop.Op {
	h.rig.Helper()
	if h.collect(); len(h.ops) != 1 {
		h.rig.Fatalf("host %d has %d operations in flight: %+v", h.owner, len(h.ops), h.ops)
	}
	return h.ops[0]
}

// run executes the operation in flight in Redis, and returns it with its result, which the table does not have yet.
func (h *pairHost) run() (redisop.Op, redisop.Result) {
	h.rig.Helper()
	op := h.sent()
	h.ops = nil
	r := h.rig
	if op.Of == redisop.KindReadWrite {
		r.now += int64(time.Microsecond) // it matters which of two requests came first
	}
	c := redis.Command{Op: &op, Owner: h.owner, Prefixes: pairUUIDs, Now: r.now, Clock: r.now / 1000, Receivers: func(to redis.Owner) int32 {
		if r.hosts[to].isDeaf {
			return 0
		}
		return 1
	}}
	var reply redis.Reply
	if op.Of == redisop.KindReadWrite {
		reply, _ = c.RunReadWrite(&r.lock, &r.counter)
	} else {
		reply = c.RunPermits(&r.semaphore)
	}
	for _, m := range reply.Sent {
		if m.Name = "api"; !r.hosts[m.To].isDeaf {
			r.hosts[m.To].inbox = append(r.hosts[m.To].inbox, m.Message)
		}
	}
	return op, redisop.Result{
		Kind: op.Kind, Name: op.Name, Outcome: reply.Outcome, Sent: r.now, Token: reply.Token, TTLMS: reply.TTLMS, Permits: reply.Permits,
		IsQueued: reply.IsQueued, Rank: reply.Rank, Ticket: reply.Ticket, Arrived: reply.Arrived, Recall: reply.Recall, Waiting: reply.Waiting, Queues: reply.Queues,
	}
}

var pairUUIDs = []string{"00000000-0000-8000-8000-000000000000:", "00000001-0000-8000-8000-000000000000:"}

// redis executes the operation in flight, and gives the table its result.
func (h *pairHost) redis() redisop.Op {
	h.rig.Helper()
	op, res := h.run()
	h.tb.Result(h.rig.now, res)
	h.collect()
	return op
}

// read gives the table the messages that it was sent.
func (h *pairHost) read() {
	for len(h.inbox) > 0 {
		m := h.inbox[0]
		h.inbox = h.inbox[1:]
		h.tb.Message(h.rig.now, m)
		h.collect()
	}
}

// settle has everything be executed and read.
func (r *pairRig) settle() {
	r.Helper()
	for range 100 {
		isQuiet := true
		for _, h := range r.hosts {
			h.read()
			if h.collect(); len(h.ops) > 0 {
				h.redis()
				isQuiet = false
			}
		}
		if isQuiet {
			return
		}
	}
	r.Fatalf("the hosts do not come to rest: %+v", r.semaphore)
}

func (r *pairRig) pass(d time.Duration) {
	for end := r.now + int64(d); r.now < end; {
		r.now = min(end, r.now+int64(time.Millisecond))
		for _, h := range r.hosts {
			h.tb.Advance(r.now)
			h.tb.Work(r.now)
			h.collect()
		}
		r.settle()
	}
}

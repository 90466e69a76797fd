package server_test

// The two-servers test: one Machine, whose bytes go to a real redis-server and to the model of one. Each reply and
// each push must be equal, but for times and what comes from a clock. So the simulation, whose servers are the model,
// shows the Machine what Redis would.
//
//	go test ./internal/sim/server -run 'TestModelAnswersAsRedis' -two.steps=100000    search for a difference

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

var twoSteps = flag.Int("two.steps", 400, "of each seed")

const (
	ourUUID   = "11111111-2222-8333-8444-555555555555"
	otherUUID = "99999999-8888-8777-8666-555555555555"
	oldUUID   = "aaaaaaaa-8888-7777-6666-555555555555" // of an older sidecar
)

var prefixes = []string{ourUUID + ":", otherUUID + ":", oldUUID + ":"}

// before is how old a ticket with a given time is. One that gets its time from the clock, which both servers read one
// after the other, is never between two of those.
const before = 10 * time.Second

// mute is a lock whose channel an ACL denies.
const mute = "mute"

const lease = uint32(3_600_000) // no key expires

// two is one Machine, or two of one host in a Cluster, and the servers of both kinds.
type two struct {
	t    *testing.T
	rand *rand.Rand
	note []string // of what was done last

	links     []*link
	listeners []*socket // of another sidecar, one at each server
	names     []string
	semaphore string // "": none
	keys      wire.Keyspace
	durable   bool
	cluster   *harness.Cluster
	replica   *harness.Redis
	isPaused  bool
	coversAll bool            // a WAIT covers what other connections wrote, and what the master asked its replicas
	denied    map[string]bool // commands
	forbidden string          // a lock that an ACL denies; "": none

	data  server.Data
	owner map[string]int // which link has the slot of a lock
	there map[string]server.KeySet
	open  map[string]*harness.Migration
	hold  uint64

	seen map[string]int // kinds of calls and of replies
}

// link is a Machine with a connection to a real server and to a model.
type link struct {
	*socket
	m      *pipeline.Machine
	redis  *harness.Redis
	server *server.Server
	number uint32
	reader server.Reader
}

// socket is a connection to both.
type socket struct {
	conn    net.Conn
	replies *wire.Replies
	pings   int
	model   *server.Conn
	sent    []wire.Reply // by the model
}

func TestModelAnswersAsRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("the short tests start no server")
	}
	calls := []string{"run", "load", "ping", "subscribe", "unsubscribe", "query", "probe", "permissions", "time"}
	replies := []string{
		"-NOSCRIPT", "-NOPERM", "usual", "taken", "missing", "differs", "held", "queued", "dropped", "passed", "arrived", "free", "paused", "not a lock", "refused", "subscribe", "unsubscribe",
		"message", "transfer", "recall", "requeue or free", "permitted", "wanted", "later", "admit", "return",
	}
	for _, kind := range []struct {
		name   string
		begin  func(w *two)
		least  []string
		weight int
	}{
		{"one server", (*two).beginSingle, append(slices.Clone(calls), replies...), 16},
		{"a Cluster", (*two).beginCluster, []string{"run", "asking", "subscribe", "time", "-MOVED", "-ASK", "-TRYAGAIN", "permitted", "wanted", "ssubscribe", "sunsubscribe by itself"}, 8},
		{"a replica that is paused", (*two).beginReplicated, []string{"run", "wait", "wait: 1", "wait: 0"}, 1}, // a WAIT takes its time
	} {
		t.Run(kind.name, func(t *testing.T) {
			w := &two{
				t: t, keys: wire.NewKeyspace(""), seen: make(map[string]int), denied: make(map[string]bool), data: make(server.Data),
				owner: make(map[string]int), there: make(map[string]server.KeySet), open: make(map[string]*harness.Migration),
				hold: 10,
			}
			kind.begin(w)
			for seed := range uint64(3) {
				w.did("seed %d", seed)
				w.rand = rand.New(rand.NewPCG(seed, 7))
				for range *twoSteps * kind.weight / 8 {
					w.step()
				}
			}
			for _, what := range kind.least {
				isSharded := what == "ssubscribe" || what == "sunsubscribe by itself"
				if w.seen[what] == 0 && (!isSharded || w.links[0].redis.HasShardedChannels()) {
					t.Errorf("%s never occurred: %v", what, w.seen)
				}
			}
			t.Log(w.seen)
		})
	}
}

func (w *two) beginSingle() {
	r := harness.StartRedis(w.t)
	w.names = []string{"a", "{b}", "c", "d", "forbidden", mute}
	w.forbidden, w.semaphore = "forbidden", "api"
	w.addLink(r, pipeline.Config{}, false)
	rules := []any{"ACL", "SETUSER", "sidecar", "resetchannels", "&" + wire.OwnChannel("*")}
	for _, name := range append(w.names[:len(w.names)-1:len(w.names)-1], wire.ProbeLock) {
		rules = append(rules, "&"+w.keys.Channel(name))
	}
	r.MustDo(rules...)
}

func (w *two) beginReplicated() {
	master, all := harness.StartReplicas(w.t, 1, "--repl-ping-replica-period", "3600")
	w.coversAll = isOlder(versionOf(master), 7, 2)
	w.names, w.durable, w.replica, w.semaphore = []string{"a", "b", "c"}, true, all[1], "api"
	w.addLink(master, pipeline.Config{Replicas: 1}, false)
	w.links[0].server.Replicas = 1
}

func versionOf(r *harness.Redis) string {
	return wire.InfoFields(r.Info(context.Background(), "server").Val())["redis_version"]
}

// isOlder reports whether a version is below another one.
func isOlder(version string, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(version, "%d.%d", &a, &b)
	return err == nil && (a < major || a == major && b < minor)
}

func (w *two) beginCluster() {
	w.cluster = harness.StartCluster(w.t, 2, 0)
	for i, n := range w.cluster.Masters() {
		w.names = append(w.names, w.cluster.Names(i, "lock", 3)...)
		w.addLink(n.Redis, pipeline.Config{IsNode: true}, n.HasShardedChannels())
	}
	for i, name := range w.names {
		w.owner[name] = i / 3
	}
	w.semaphore = w.cluster.Names(0, "semaphore", 1)[0]
	for i, l := range w.links {
		l.server.AsksUnsubscribe = w.asksUnsubscribe(l, i)
		l.server.AsksForAny = isOlder(versionOf(l.redis), 7, 0)
	}
}

// asksUnsubscribe reports whether the node answers a SUNSUBSCRIBE with ASK while its slot is on its way.
func (w *two) asksUnsubscribe(l *link, i int) bool {
	masters := w.cluster.Masters()
	if !masters[i].HasShardedChannels() {
		return false
	}
	slot, channel := masters[i].Slots()[0], ""
	for n := 0; channel == ""; n++ {
		if text := strconv.Itoa(n); int(wire.SlotOf(text)) == slot {
			channel = text
		}
	}
	c := w.connect(l, 1)
	defer c.close()
	w.exchange(c, "ssubscribe", channel)
	masters[i].MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", masters[1-i].ID)
	defer masters[i].MustDo("CLUSTER", "SETSLOT", slot, "STABLE")
	return w.exchange(c, "sunsubscribe", channel)[0].Kind == '-'
}

func (w *two) addLink(r *harness.Redis, c pipeline.Config, isSharded bool) {
	r.AddUser("sidecar", "nopass", "~*", "&*", "+@all")
	c.UUID, c.Keys, c.Timeout, c.ProbeInterval, c.Batches = ourUUID, w.keys, time.Hour, time.Hour, pipeline.DefaultBatches
	if w.cluster != nil {
		c.ProbeInterval = 0 // no lock of a probe is of a slot of both
	}
	s := server.New(w)
	s.Keys, s.Prefixes, s.IsNode, s.Address = w.keys, prefixes, c.IsNode, "127.0.0.1:"+strconv.Itoa(r.Port)
	l := &link{m: pipeline.New(c), redis: r, server: s, reader: server.Reader{Keys: w.keys}}
	w.links = append(w.links, l)
	other := w.connect(l, 1)
	w.listeners = append(w.listeners, other)
	w.subscribeOwn(other, otherUUID)
	w.subscribeOwn(other, oldUUID)
	s.PushesLast = w.pushesLast(l)
	w.greet(l, isSharded)
}

// pushesLast reports whether the server sends what a script publishes to its own connection after the reply.
func (w *two) pushesLast(l *link) bool {
	c := w.connect(l, 1)
	defer c.close()
	w.exchange(c, "subscribe", "order")
	all := w.exchange(c, "eval", "return redis.call('publish', 'order', '0')", "0")
	return all[0].Kind == ':'
}

func (w *two) connect(l *link, owner redis.Owner) *socket {
	conn, err := net.Dial("unix", l.redis.Socket())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	c := &socket{conn: conn, replies: wire.NewReplies(conn), model: l.server.Connect(int32(owner), owner, &server.User{})}
	w.exchange(c, "hello", "3", "auth", "sidecar", "")
	return c
}

func (c *socket) close() {
	c.conn.Close()
	c.model.Disconnect()
}

func (w *two) subscribeOwn(c *socket, uuid string) {
	w.exchange(c, "subscribe", wire.OwnChannel(uuid))
	c.model.SubscribeOwn(wire.OwnChannel(uuid))
}

// greet makes the connection of a Machine.
func (w *two) greet(l *link, isSharded bool) {
	l.socket = w.connect(l, 0)
	l.model.User = w.user()
	w.subscribeOwn(l.socket, ourUUID)
	for _, s := range wire.Scripts {
		if all := w.exchange(l.socket, "script", "load", s.Text); all[0].Kind != '-' {
			l.server.Learn()
		}
	}
	info := wire.InfoFields(w.exchange(l.socket, "info", "server")[0].Text)
	clock := w.exchange(l.socket, "time")[0].List
	seconds, _ := strconv.ParseInt(clock[0].Text, 10, 64)
	l.number++
	g := &pipeline.Greeting{
		Server: wire.Server{Address: l.server.Address, Keys: w.keys, IsNode: w.cluster != nil}, ID: wire.Identity{RunID: info["run_id"], Floor: seconds * 1e6, FloorAt: protocol.Now()},
		Origin: wire.OriginOf(info["run_id"], "master"), Number: l.number, Clock: seconds * 1e6, ClockAt: protocol.Now(),
		HasQueues: true, IsSharded: isSharded, Loads: !w.denied["script|load"],
	}
	g.Eviction.OnInfo(map[string]string{"maxmemory_policy": "noeviction", "evicted_keys": "0"})
	l.m.Up(protocol.Now(), g)
	w.settle()
}

// user is what the ACL denies.
func (w *two) user() *server.User {
	return &server.User{Commands: w.denied, Lock: func(name string) bool { return w.denied["~"] && name == w.forbidden }, Channel: func(channel string) bool {
		return channel == w.keys.Channel(mute)
	}}
}

// exchange gives a command to the real server alone.
func (w *two) exchange(c *socket, words ...string) []wire.Reply {
	command := wire.AppendArray(nil, len(words))
	for _, word := range words {
		command = wire.AppendString(command, word)
	}
	if _, err := c.conn.Write(command); err != nil {
		w.t.Fatal(err)
	}
	return w.received(c)
}

// received is what the real server has sent by now.
func (w *two) received(c *socket) (all []wire.Reply) {
	c.pings++
	end := fmt.Sprintf("end %d", c.pings)
	if _, err := c.conn.Write(wire.AppendString(wire.AppendString(wire.AppendArray(nil, 2), "ping"), end)); err != nil {
		w.t.Fatal(err)
	}
	for {
		r, err := c.replies.Next()
		if err != nil {
			w.t.Fatalf("%v, after %q", err, w.note)
		}
		if r.Kind == '$' && r.Text == end {
			return all
		}
		r.List = clone(r.List)
		all = append(all, r)
	}
}

func clone(list []wire.Reply) []wire.Reply {
	list = slices.Clone(list)
	for i := range list {
		list[i].List = clone(list[i].List)
	}
	return list
}

// --- The World of the models ---

func (w *two) Now(*server.Server) (now, clock int64) { return protocol.Now(), time.Now().UnixMicro() }

func (w *two) Execute(c *server.Conn, r *server.Run, i int) (reply redis.Reply, field string) {
	name := r.Ops[i].Name
	lock := w.data.Of(name)
	before := lock.Keys()
	now, clock := w.Now(nil)
	queue := lock.Queue
	if _, has := w.Slot(c.Server, name); r.Ops[i].Kind == redisop.Arrive && has&server.QueueKey == 0 {
		lock.Queue = redis.Queue{} // it is no key of the script, and not here
	}
	reply, field = w.data.Execute(c, r, i, now, clock)
	if r.Ops[i].Kind == redisop.Arrive {
		lock.Queue = queue
	}
	if at := w.open[name]; at != nil && c.Server == w.at(at.To).server {
		w.there[name] |= lock.Keys() &^ before
	}
	return reply, field
}

func (w *two) at(n *harness.ClusterNode) *link {
	for _, l := range w.links {
		if l.redis == n.Redis {
			return l
		}
	}
	panic("a node of another Cluster")
}

func (w *two) Slot(s *server.Server, name string) (server.Slot, server.KeySet) {
	keys, owner, open := w.data.Of(name).Keys(), w.links[w.owner[name]].server, w.open[name]
	switch {
	case open == nil && s == owner:
		return server.Slot{}, keys
	case s == owner:
		return server.Slot{Place: server.Migrating, Other: w.at(open.To).server.Address}, keys &^ w.there[name]
	case open != nil && s == w.at(open.To).server:
		return server.Slot{Place: server.Importing, Other: owner.Address}, keys & w.there[name]
	}
	return server.Slot{Place: server.Elsewhere, Other: owner.Address}, 0
}

func (w *two) Send(c *server.Conn, reply wire.Reply) {
	for _, s := range w.sockets() {
		if s.model == c {
			s.sent = append(s.sent, reply)
		}
	}
}

func (w *two) Publish(*server.Server, string, string) {}

func (w *two) Confirmed(c *server.Conn, replicas int) int {
	if w.isPaused && c.HasWritten {
		return 0
	}
	c.HasWritten = false
	return replicas
}

func (w *two) sockets() (all []*socket) {
	for i, l := range w.links {
		if l.socket != nil {
			all = append(all, l.socket)
		}
		if i < len(w.listeners) {
			all = append(all, w.listeners[i])
		}
	}
	return all
}

// --- What happens ---

func (w *two) did(format string, args ...any) {
	w.note = append(w.note[max(0, len(w.note)-12):], fmt.Sprintf(format, args...))
}

func (w *two) oneIn(n int) bool { return w.rand.IntN(n) == 0 }

func pick[T any](w *two, from []T) T { return from[w.rand.IntN(len(from))] }

func (w *two) step() {
	l := w.links[w.rand.IntN(len(w.links))]
	now := protocol.Now()
	switch n := w.rand.IntN(40); {
	case w.isPaused && n < 10:
		w.pause()
	case n < 22:
		ops := w.operations()
		if w.semaphore != "" && w.oneIn(2) {
			ops = append(ops, w.permitsOperation())
		}
		w.did("%+v", ops)
		l.m.Do(now, ops)
	case n < 25:
		name := pick(w, w.names)
		w.did("subscribe %s", name)
		l.m.Subscribe(name)
		l.m.Advance(now, now, false)
	case n < 27:
		name := pick(w, w.names)
		w.did("unsubscribe %s", name)
		l.m.Unsubscribe(name)
		l.m.Advance(now, now, false)
	case n < 31 && w.semaphore != "" && w.oneIn(3):
		w.changePermitsByOther()
	case n < 31:
		w.changeByOther(pick(w, w.names))
	case n == 31:
		w.did("SCRIPT FLUSH")
		l.redis.MustDo("SCRIPT", "FLUSH")
		l.server.FlushScripts()
	case n == 32 && w.oneIn(3):
		w.kill(l)
	case n == 33 && w.cluster == nil:
		w.changePermissions()
	case n == 34:
		w.did("the clock is asked for")
		l.m.Lift(now, 0, true)
	case n == 35:
		w.did("an idle ping, or a probe")
		l.m.Advance(now+int64(2*time.Hour), now+int64(2*time.Hour), false)
	case n == 36:
		name, field := pick(w, w.names), prefixes[w.rand.IntN(len(prefixes))]+"1"
		w.did("a question about %s", name)
		if w.owner[name] == slices.Index(w.links, l) {
			l.m.Ask(now, &pipeline.Query{Script: wire.AcquireRelease, Args: func(p *wire.Params) []string { return p.Encoder.DropArgs(name, field, p.Birth, 0) }})
		}
		l.m.Ask(now, &pipeline.Query{Commands: [][]string{{"time"}, {"role"}}})
	case w.cluster != nil:
		w.moveSlots()
	case w.replica != nil:
		w.pause()
	}
	w.settle()
}

// operations draws what the lock table may ask for.
func (w *two) operations() (ops []redisop.Op) {
	for _, i := range w.rand.Perm(len(w.names))[:1+w.rand.IntN(min(4, len(w.names)))] {
		name := w.names[i]
		w.hold++
		op := redisop.Op{Name: name, HoldID: w.hold - uint64(w.rand.IntN(4)), Count: 1, LeaseMS: lease, Kind: pick(w, []redisop.OpKind{redisop.Take, redisop.Take, redisop.Drop, redisop.Renew, redisop.Check, redisop.Arrive})}
		if k := w.data.Of(name).Key; k.Owner == 0 && w.oneIn(2) {
			op.HoldID = k.Num
		}
		take := func(op *redisop.Op) {
			op.Reserve = uint16(w.rand.IntN(3))
			op.Flags.Set(redisop.RequireExisting, w.oneIn(4))
			op.Flags.Set(redisop.CountListeners, w.oneIn(3))
			if w.oneIn(2) {
				op.Flags |= redisop.Enqueue
				op.Flags.Set(redisop.InOrder, w.oneIn(2))
				op.Ticket = w.ticketOf(name)
				if op.Has(redisop.InOrder) && w.oneIn(2) {
					op.Arrived = uint64(time.Now().Add(-before).UnixMicro()) - uint64(w.rand.IntN(1000))
				}
			}
		}
		switch op.Kind {
		case redisop.Take:
			if op.Count = uint32(1 + w.rand.IntN(2)); w.oneIn(2) {
				op.Count, op.Reserve = 1, 1
				break
			}
			take(&op)
		case redisop.Check:
			op.LeaseMS = 0
		case redisop.Arrive:
			op.LeaseMS, op.HoldID = 0, 0
		case redisop.Drop:
			op.Flags.Set(redisop.CanWait, w.oneIn(3))
			op.PassedMS = pick(w, []uint32{0, 0, 10, 150, 5000})
			op.Ticket = w.ticketOf(name)
			if w.oneIn(2) && !op.Has(redisop.CanWait) {
				again := redisop.Op{Name: name, Kind: redisop.Take, HoldID: op.HoldID + 1, Count: 1, LeaseMS: lease, Asked: redisop.Asked{Flags: redisop.AfterPendingDrop}}
				take(&again)
				again.Reserve, again.Ticket = max(again.Reserve, 1), 0
				again.Flags.Set(redisop.RequireExisting, false)
				ops = append(ops, op, again)
				continue
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// permitsOperation draws an operation on the semaphore.
func (w *two) permitsOperation() redisop.Op {
	s := &w.data.Of(w.semaphore).Semaphore
	w.hold++
	op := redisop.Op{Of: redisop.KindPermits, Name: w.semaphore, HoldID: w.hold - uint64(w.rand.IntN(5)/4*20), LeaseMS: lease, Kind: pick(w, []redisop.OpKind{redisop.Take, redisop.Take, redisop.Take, redisop.Drop, redisop.Renew, redisop.Check})}
	op.Count = uint32(s.Claims[0].Units)
	if w.oneIn(3) {
		op.Count = uint32(w.rand.IntN(4))
	}
	switch op.Kind {
	case redisop.Take:
		op.Asked = redisop.Asked{Want: uint16(w.rand.IntN(3)), Capacity: uint16(3 + w.rand.IntN(3)), Times: uint8(1 + w.rand.IntN(2)), Reserve: uint16(w.rand.IntN(3))}
		op.Flags.Set(redisop.Enqueue, !w.oneIn(3))
		op.Flags.Set(redisop.RequireExisting, w.oneIn(3))
		op.Flags.Set(redisop.Yields, w.oneIn(3))
		op.Ticket = uint64(w.rand.IntN(2))
	case redisop.Check:
		op.LeaseMS = 0
	}
	return op
}

// changePermitsByOther gives both hosts other claims, and another host a place.
func (w *two) changePermitsByOther() {
	if w.open[w.semaphore] != nil {
		return
	}
	l, keys := w.links[w.owner[w.semaphore]], []any{"DEL", w.semaphore, w.keys.Ours(wire.WantedPrefix, w.semaphore), w.keys.Ours(wire.WantsPrefix, w.semaphore)}
	l.redis.MustDo(keys...)
	s := redis.Semaphore{}
	now := time.Now()
	until := now.Add(time.Duration(lease) * time.Millisecond).UnixMilli()
	for owner, num := range []uint64{w.hold, uint64(1 + w.rand.IntN(9))} {
		if units := int64(w.rand.IntN(3)); units > 0 {
			if s.Claims == nil {
				s.Exists, s.Claims, s.Due, s.Until, s.Last = true, make(map[redis.Owner]redis.PermitClaim), until, until, now.UnixMicro()
			}
			s.Claims[redis.Owner(owner)] = redis.PermitClaim{Num: num, Units: units, Expiry: until}
			s.Held += units
			l.redis.MustDo("HSET", w.semaphore, prefixes[owner][:36], fmt.Sprintf("%d %d %d", num, units, until))
		}
	}
	if s.Exists {
		l.redis.MustDo("HSET", w.semaphore, "mode", fmt.Sprintf("permits %d %d %d %d", s.Held, s.Due, s.Until, s.Last))
		l.redis.MustDo("PEXPIRE", w.semaphore, lease)
		s.ExpireAt = protocol.Now() + int64(lease)*1e6
	}
	if w.oneIn(2) {
		p := redis.PermitPlace{Owner: 1, Time: now.Add(-before).UnixMicro(), Num: uint64(1 + w.rand.IntN(9)), Units: int64(1 + w.rand.IntN(2)), Capacity: 4, LeaseMS: int64(lease), Asked: now.Add(-before).Unix()}
		s.Places, s.PlacesExpireAt = []redis.PermitPlace{p}, protocol.Now()+int64(lease)*1e6
		l.redis.MustDo("ZADD", keys[2], p.Time, prefixes[1][:36])
		l.redis.MustDo("HSET", keys[3], prefixes[1][:36], fmt.Sprintf("%d %d %d %d %d", p.Num, p.Units, p.Capacity, p.LeaseMS, p.Asked))
		l.redis.MustDo("PEXPIRE", keys[2], lease)
		l.redis.MustDo("PEXPIRE", keys[3], lease)
	}
	w.did("the semaphore is %+v", s)
	w.data.Of(w.semaphore).Semaphore = s
}

// ticketOf is a ticket of ours in the queue of a lock; 0: none.
func (w *two) ticketOf(name string) uint64 {
	for _, t := range w.data.Of(name).Queue.Tickets {
		if t.Owner == 0 && w.oneIn(2) {
			return t.Num
		}
	}
	return 0
}

// changeByOther has another program change what there is of a lock.
func (w *two) changeByOther(name string) {
	if w.open[name] != nil {
		return
	}
	l, lock, num := w.links[w.owner[name]], w.data.Of(name), uint64(1+w.rand.IntN(9))
	owner := redis.Owner(1 + w.rand.IntN(2))
	switch w.rand.IntN(12) {
	default:
		w.did("%s and its counter are deleted", name)
		l.redis.MustDo("DEL", name, w.keys.Counter(name))
		lock.Key, lock.Counter = redis.NoKey, redis.Counter{}
	case 2:
		w.did("%s is a string", name)
		l.redis.MustDo("SET", name, "x")
		lock.Key = redis.Key{Owner: redis.NoOwner, ExpireAt: redis.NoExpiry, Other: &redis.Content{Type: "string", Text: "x"}}
	case 3:
		w.did("the counter of %s is a list", name)
		l.redis.MustDo("DEL", w.keys.Counter(name))
		l.redis.MustDo("RPUSH", w.keys.Counter(name), "x")
		lock.Counter = redis.Counter{Exists: true, ExpireAt: redis.NoExpiry, Other: &redis.Content{Type: "list", Text: "x"}}
	case 4:
		w.did("%s is host %d's", name, owner)
		l.redis.MustDo("DEL", name)
		l.redis.MustDo("HSET", name, prefixes[owner]+strconv.FormatUint(num, 10), 1)
		l.redis.MustDo("PEXPIRE", name, lease)
		lock.Key = redis.Key{Owner: owner, Num: num, Count: 1, ExpireAt: protocol.Now() + int64(lease)*1e6}
	case 5:
		age := pick(w, []time.Duration{before, before, time.Minute})
		at := time.Now().Add(-age).UnixMicro()
		w.did("host %d has a ticket for %s, of %v ago", owner, name, age)
		l.redis.MustDo("ZADD", w.keys.Queue(name), at, prefixes[owner]+strconv.FormatUint(num, 10))
		l.redis.MustDo("PEXPIRE", w.keys.Queue(name), lease)
		lock.Queue.ExpireAt = protocol.Now() + int64(lease)*1e6
		lock.Queue.Add(redis.Ticket{Owner: owner, Num: num, Time: at})
	case 6:
		w.did("the queue of %s is deleted", name)
		l.redis.MustDo("DEL", w.keys.Queue(name), w.keys.Ours(wire.SignsPrefix, name))
		lock.Queue = redis.Queue{}
	}
}

// kill ends the connection of a Machine, and makes another one.
func (w *two) kill(l *link) {
	w.did("CLIENT KILL")
	id := w.exchange(l.socket, "client", "id")[0].Num
	l.redis.MustDo("CLIENT", "KILL", "ID", id)
	if _, err := l.replies.Next(); err == nil {
		w.t.Fatal("the connection is killed, and there is a reply")
	} else if err != io.EOF && !strings.Contains(err.Error(), "reset") {
		w.t.Fatal(err)
	}
	l.close()
	l.m.Cut()
	_ = l.m.Rest(protocol.Now())
	l.m.Down(l.m.Made(), "killed")
	_ = l.m.TakeDeliveries(nil)
	w.greet(l, l.m.IsSharded)
}

// changePermissions changes what the ACL denies the user.
func (w *two) changePermissions() {
	l := w.links[0]
	what := pick(w, []string{"script", "role", "config", "~", "publish", "type"})
	name := map[string]string{"script": "script|load", "config": "config|get"}[what]
	if name == "" {
		name = what
	}
	if what == "~" && w.forbidden == "" {
		return
	}
	w.denied[name] = !w.denied[name]
	w.did("ACL SETUSER: %s is denied: %t", name, w.denied[name])
	switch {
	case what == "~" && w.denied[name]:
		rules := []any{"ACL", "SETUSER", "sidecar", "resetkeys", "~*" + wire.ProbeLock + "*"}
		for _, name := range w.names {
			if name != w.forbidden {
				for _, key := range []string{name, w.keys.Counter(name), w.keys.Queue(name), w.keys.Ours(wire.SignsPrefix, name)} {
					rules = append(rules, "~"+key)
				}
			}
		}
		if w.semaphore != "" {
			rules = append(rules, "~"+w.semaphore, "~"+w.keys.Ours(wire.WantedPrefix, w.semaphore), "~"+w.keys.Ours(wire.WantsPrefix, w.semaphore))
		}
		l.redis.MustDo(rules...)
	case what == "~":
		l.redis.MustDo("ACL", "SETUSER", "sidecar", "~*")
	case w.denied[name]:
		l.redis.MustDo("ACL", "SETUSER", "sidecar", "-"+what)
	default:
		l.redis.MustDo("ACL", "SETUSER", "sidecar", "+"+what)
	}
}

// moveSlots begins, goes on with or ends the migration of a slot.
func (w *two) moveSlots() {
	name := pick(w, w.names)
	if w.oneIn(4) {
		name = w.semaphore
	}
	lock, open := w.data.Of(name), w.open[name]
	if open == nil {
		to := 1 - w.owner[name]
		w.did("the slot of %s begins to migrate", name)
		w.open[name], w.there[name] = w.cluster.OpenMigration(harness.Slot(name), w.cluster.Masters()[to]), 0
		return
	}
	if w.oneIn(3) {
		w.did("the slot of %s is moved", name)
		open.Close()
		w.cluster.AwaitMessages()
		l := w.links[w.owner[name]]
		w.owner[name] = 1 - w.owner[name]
		delete(w.open, name)
		l.server.EndSlot(name)
		return
	}
	set := server.KeySet(1 + w.rand.IntN(int(server.AllKeys)))
	if w.oneIn(2) {
		set = server.AllKeys
	}
	w.did("keys of %s are moved: %d", name, set)
	keys := map[server.KeySet]string{
		server.LockKey: name, server.CounterKey: w.keys.Counter(name), server.QueueKey: w.keys.Queue(name), server.SignsKey: w.keys.Ours(wire.SignsPrefix, name),
	}
	if name == w.semaphore {
		keys = map[server.KeySet]string{
			server.LockKey: name, server.QueueKey: w.keys.Ours(wire.WantedPrefix, name), server.SignsKey: w.keys.Ours(wire.WantsPrefix, name),
		}
	}
	for key, of := range keys {
		if set&key != 0 {
			open.MoveKeys(of)
			w.there[name] |= key & lock.Keys()
		}
	}
}

// pause pauses the replica, or has it go on.
func (w *two) pause() {
	if w.isPaused = !w.isPaused; w.isPaused {
		w.did("the replica is paused")
		w.replica.Signal(syscall.SIGSTOP)
		return
	}
	w.did("the replica goes on")
	w.replica.Signal(syscall.SIGCONT)
}

// --- The comparison ---

// settle has both servers execute what the Machines have made, until they have made all.
func (w *two) settle() {
	for again := true; again; {
		again = false
		for i, l := range w.links {
			if l.socket == nil {
				continue
			}
			for _, c := range l.m.Commands() {
				w.seen[c.Name]++
			}
			out := l.m.TakeBytes(nil)
			again = again || len(out) > 0
			w.send(l, out)
			for _, r := range w.compare(l.socket, i) {
				if err := l.m.Reply(protocol.Now(), &r); err != nil {
					w.t.Fatalf("%v, after %q", err, w.note)
				}
			}
			if err := l.m.Rest(protocol.Now()); err != nil {
				w.t.Fatalf("%v, after %q", err, w.note)
			}
			w.handOn(l)
		}
	}
	for i, c := range w.listeners {
		w.compare(c, i)
	}
}

// handOn does what the store does with deliveries.
func (w *two) handOn(l *link) {
	for _, d := range l.m.TakeDeliveries(nil) {
		switch d.Kind {
		case pipeline.Asked:
			for _, other := range w.links {
				if other.server.Address == d.Redirect.Address {
					other.m.DoAsking(protocol.Now(), d.Ops)
				}
			}
		case pipeline.SlotLeft:
			w.seen["sunsubscribe by itself"]++
			for _, name := range d.Names {
				l.m.Unsubscribe(name)
			}
			l.m.Advance(protocol.Now(), protocol.Now(), false)
		}
	}
}

// send gives commands to both servers. A WAIT waits for a replica that runs for as long as it takes.
func (w *two) send(l *link, out []byte) {
	var cmd server.Command
	for left := out; len(left) > 0; {
		rest, err := l.reader.Read(left, &cmd)
		if err != nil {
			w.t.Fatalf("%v, after %q: %.300q", err, w.note, left)
		}
		raw := left[:len(left)-len(rest)]
		if cmd.Words[0] == "wait" && !w.isPaused {
			raw = wire.AppendNumber(wire.AppendNumber(wire.AppendString(wire.AppendArray(nil, 3), "wait"), int64(1)), 0)
		}
		if _, err := l.conn.Write(raw); err != nil {
			w.t.Fatal(err)
		}
		l.server.Do(l.model, &cmd)
		left = rest
	}
}

// compare compares what both servers have sent over a connection.
func (w *two) compare(c *socket, at int) []wire.Reply {
	real := w.received(c)
	if w.cluster != nil { // a message comes to all nodes, later
		isCopy := func(r wire.Reply) bool { return r.Kind == '>' && r.List[0].Text == "message" }
		real, c.sent = slices.DeleteFunc(real, isCopy), slices.DeleteFunc(c.sent, isCopy)
	}
	model := c.sent
	c.sent = nil
	for i := range max(len(real), len(model)) {
		if w.isPaused && w.coversAll && i < min(len(real), len(model)) && model[i].Kind == ':' && model[i].Num == 1 && real[i].Num == 0 {
			model[i].Num = 0
		}
		if i >= len(real) || i >= len(model) || !w.isEqual(&real[i], &model[i]) {
			w.t.Fatalf("reply %d of server %d:\nredis-server %s\nthe model    %s\nafter\n%s", i, at, show(real), show(model), strings.Join(w.note, "\n"))
		}
		w.count(&real[i])
	}
	return real
}

func show(all []wire.Reply) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, " %c%d%s%s", r.Kind, r.Num, r.Text, show(r.List))
	}
	return "[" + strings.TrimSpace(b.String()) + "]"
}

// fromClock is a number from which on one is a time or a token of a clock, µs.
const fromClock = 1e15

// isEqual reports whether a reply of the model is that of the real server, but for what comes from a clock, and for the
// sentences of errors.
func (w *two) isEqual(real, model *wire.Reply) bool {
	if real.Kind != model.Kind {
		a, isA := usualPermits(real)
		b, isB := usualPermits(model)
		return isA && isB && w.isNear(a, b)
	}
	switch real.Kind {
	case ':':
		return w.isNear(real.Num, model.Num)
	case '-':
		if code := wire.Code(real.Text); code == "MOVED" || code == "ASK" {
			return real.Text == model.Text
		}
		return wire.Code(real.Text) == wire.Code(model.Text)
	case '$':
		return w.isEqualText(real.Text, model.Text)
	case '%':
		return true // CONFIG GET
	}
	if isRole := len(real.List) > 0 && real.List[0].Text == "master"; isRole {
		return model.List[0].Text == "master" && len(real.List[2].List) == len(model.List[2].List)
	}
	if len(real.List) != len(model.List) {
		return false
	}
	for i := range real.List {
		if !w.isEqual(&real.List[i], &model.List[i]) {
			return false
		}
	}
	return true
}

// usualPermits returns the token of permits that are as they were asked for. Only the head of the script, of which the model
// knows nothing, says that in one number.
func usualPermits(r *wire.Reply) (token int64, is bool) {
	switch {
	case r.Kind == ':':
		return r.Num, true
	case r.Kind == '*' && len(r.List) == 4 && r.List[0].Num == int64(wire.CodePermitted) && r.List[3].Num == 0:
		return r.List[2].Num, true
	}
	return 0, false
}

func (w *two) isNear(real, model int64) bool {
	switch diff := max(real-model, model-real); {
	case model >= fromClock:
		return diff < int64(time.Hour/time.Microsecond)
	case model > 1e9: // s
		return diff < 3600
	case model > int64(lease)/2: // PTTL
		return diff < int64(lease)/2
	}
	return real == model
}

func (w *two) isEqualText(real, model string) bool {
	real = wire.Reason(real)
	if strings.HasPrefix(real, "# ") && strings.HasPrefix(model, "# ") {
		return true // INFO
	}
	if _, rest, isOfScript := strings.Cut(real, "@user_script: "); isOfScript { // Redis 6.2 has no code there
		_, rest, _ = strings.Cut(rest, ": ")
		real = "ERR " + rest
	}
	a, b := strings.Fields(real), strings.Fields(model)
	if isError := len(a) > 1 && len(b) > 0 && strings.ToUpper(a[0]) == a[0] && a[0] > "A"; isError {
		return a[0] == b[0]
	}
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, errX := strconv.ParseInt(a[i], 10, 64)
		y, errY := strconv.ParseInt(b[i], 10, 64)
		if errX != nil || errY != nil {
			if a[i] != b[i] {
				return false
			}
		} else if !w.isNear(x, y) && !(len(a) == 1 && x < 1e6 && y < 1e6) { // TIME: of the second
			return false
		}
	}
	return true
}

var codes = []string{"", "taken", "missing", "differs", "held", "queued", "free", "free", "dropped", "passed", "paused", "arrived", "not a lock", "refused", "permitted", "wanted", "later"}

// count counts the kinds of replies.
func (w *two) count(r *wire.Reply) {
	switch {
	case r.Kind == '-':
		w.seen["-"+wire.Code(r.Text)]++
	case r.Kind == '>' && strings.HasSuffix(r.List[0].Text, "message"):
		word, _, _ := strings.Cut(r.List[2].Text, " ")
		word, _, _ = strings.Cut(word, ":")
		switch word {
		case "0":
			word = "message"
		case "requeue", "free":
			word = "requeue or free"
		}
		w.seen[word]++
	case r.Kind == '>':
		w.seen[r.List[0].Text]++
	case r.Kind == ':' && w.durable && r.Num < 2:
		w.seen[fmt.Sprintf("wait: %d", r.Num)]++
	case r.Kind == ':':
		w.seen["usual"]++
	case r.Kind == '*' && len(r.List) > 0 && r.List[0].Kind == ':' && r.List[0].Num > 0 && r.List[0].Num < int64(len(codes)):
		w.seen[codes[r.List[0].Num]]++
	case r.Kind == '*':
		for i := range r.List {
			w.count(&r.List[i])
		}
	}
}

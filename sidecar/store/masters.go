package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func newMasters(cfg Config, d *link.Dialer, shared *link.Shared, connect func(*shard, *link.Dialer, wire.Identity, *link.Shared)) *masters {
	if _, rest, isTagged := strings.Cut(cfg.KeyPrefix, "{"); isTagged && strings.Contains(rest, "}") && cfg.Log != nil {
		cfg.Log.Info("the key prefix has a hash tag: all locks of this host are in one slot, so one master of the Cluster has all of them")
	}
	c := cluster.Config{Place: d.Address, Slots: redisop.Slots, SlotOf: d.Keys.SlotOf, Tagged: d.Keys.Tagged, NotYet: d.NotYet(), Last: cfg.Last, Rand: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	m := cluster.New(c, d.Nodes)
	ms := &masters{cfg: cfg, keys: d.Keys, shared: shared, connect: connect, wake: make(chan struct{}, 1), owner: m.Owner, behindMu: guarded{Map: m, login: d}}
	ms.shards.Store(&[]*shard{nil})
	ms.ctx, ms.stop = context.WithCancel(context.Background())
	return ms
}

// update gives the Map an input, and carries out what it wants done. When it returns, all routes that were noted before
// are delivered, by whichever goroutine: the results of operations that were not executed follow.
func (ms *masters) update(input func(m *cluster.Map, now int64)) {
	ms.delivering.Lock()
	var effects []cluster.Effect
	ms.with(func(m *guarded) {
		input(m.Map, protocol.Now())
		effects = m.Effects()
		if next := m.Next(); next < m.armed {
			m.armed = next
			select {
			case ms.wake <- struct{}{}:
			default:
			}
		}
	})
	var opened, gone []*shard
	for i := range effects {
		switch e := &effects[i]; e.Kind {
		case cluster.Open:
			opened = append(opened, ms.open(e))
		case cluster.End:
			gone = append(gone, ms.remove(e.Shard))
		default:
			ms.carryOut(e)
		}
	}
	ms.delivering.Unlock()
	for _, s := range opened {
		go s.link.Run()
	}
	ms.end(gone)
}

func (ms *masters) carryOut(e *cluster.Effect) {
	s := ms.get(e.Shard)
	switch e.Kind {
	case cluster.TooLarge:
		ms.cfg.Log.Error("the Cluster has more masters than are connected; locks of their slots are unavailable", "masters", cluster.MaxShards)
	case cluster.Lift:
		s.lift(&e.Floor, e.AsksClock)
	case cluster.ConnectNow:
		s.link.SetIdle(false)
	case cluster.Idle:
		s.link.SetIdle(true)
	case cluster.ProbeLock:
		s.link.With(func(m *pipeline.Machine) { m.ProbeLock(e.Name) })
	case cluster.Route:
		ms.cfg.tell(Event{Kind: Route, Routes: e.Routes})
	case cluster.Trouble:
		if !e.IsKnown {
			ms.cfg.Log.Warn("the topology of the Cluster is not known", "reason", e.Text)
		}
		ms.cfg.tell(Event{Kind: Down, Text: e.Text})
	case cluster.Stays:
		if e.Text != "" {
			ms.cfg.Log.Warn("a slot of the Cluster stays open", "reason", e.Text, "locks_wait", e.IsBlocking)
		} else {
			ms.cfg.Log.Info("no slot of the Cluster stays open any more")
		}
		ms.cfg.tell(Event{Kind: OpenSlots, Text: e.Text, IsBlocking: e.IsBlocking})
	}
}

// lift has the tokens of the server be above a floor, too. asksClock: slots have just moved there, so they
// are to be above all tokens that were drawn before, too.
func (s *shard) lift(floor *wire.Identity, asksClock bool) {
	s.link.With(func(m *pipeline.Machine) {
		now, above := protocol.Now(), int64(0)
		if floor.Known() {
			above = floor.Above(now)
		}
		m.Lift(now, above, asksClock)
	})
}

// open makes the link to a shard, which is not connected yet.
func (ms *masters) open(e *cluster.Effect) *shard {
	s := &shard{n: e.Shard, cfg: &ms.cfg, masters: ms, log: ms.cfg.Log.With("master", e.Address)}
	ms.connect(s, ms.at(e.Address), wire.Identity{}, ms.shared)
	shards := slices.Clone(*ms.shards.Load())
	for int(e.Shard) >= len(shards) {
		shards = append(shards, nil)
	}
	shards[e.Shard] = s
	ms.shards.Store(&shards)
	return s
}

// remove removes a shard from those that can be asked.
func (ms *masters) remove(n redisop.Shard) *shard {
	shards := slices.Clone(*ms.shards.Load())
	s := shards[n]
	shards[n] = nil
	ms.shards.Store(&shards)
	return s
}

// end ends shards whose nodes have left the Cluster.
func (ms *masters) end(gone []*shard) {
	for _, s := range gone {
		ctx, cancel := context.WithTimeout(ms.ctx, link.TopologyTimeout)
		_ = s.link.Close(ctx) // what it owes has its results, whatever the error
		cancel()
		s.log.Info("this node has left the Cluster: it is connected no more")
		ms.cfg.tell(Event{Kind: Down, Shard: s.n, Text: "this master of the Cluster is not connected yet"}) // the next one with this number
	}
	ms.with(func(m *guarded) {
		for _, s := range gone {
			m.Ended(s.n)
		}
	})
}

// run learns which master has which slot, until close.
func (ms *masters) run() {
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ms.wake:
		case <-ms.ctx.Done():
			return
		}
		isDue := false
		if ms.with(func(m *guarded) { isDue = protocol.Now() >= m.Next() }); isDue {
			ms.learn()
		}
		ms.with(func(m *guarded) {
			m.armed = m.Next()
			look.Reset(time.Duration(m.armed - protocol.Now()))
		})
	}
}

// learn asks nodes until one answers, and then the masters of open slots.
func (ms *masters) learn() {
	ms.readLogin()
	var askable, openMasters, reasons []string
	ms.with(func(m *guarded) { askable = m.Due(protocol.Now()) })
	why := ""
	for _, address := range askable {
		t, err := ms.ask(address)
		if ms.ctx.Err() != nil {
			return
		}
		if err != nil {
			why = err.Error()
		} else {
			ms.update(func(m *cluster.Map, now int64) { why = m.Learned(now, t, address) })
		}
		if why == "" {
			break
		}
		if len(reasons) < 3 {
			reasons = append(reasons, why)
		}
	}
	if why != "" {
		ms.update(func(m *cluster.Map, _ int64) { m.NotLearned(strings.Join(reasons, "; ")) })
	}
	ms.with(func(m *guarded) { openMasters = m.OpenMasters() })
	for _, address := range openMasters {
		_, _ = ms.ask(address)
	}
	ms.update(func(m *cluster.Map, now int64) { m.Rest(now) })
}

// ask asks one node, on the connection to it if there is one. A connection for the question costs the
// node three times as much (BenchmarkRedisTopology), and ten thousand hosts ask when a master fails.
func (ms *masters) ask(address string) (*cluster.Topology, error) {
	askedAt := protocol.Now()
	ctx, cancel := context.WithTimeout(ms.ctx, link.TopologyTimeout)
	defer cancel()
	var s *shard
	ms.with(func(m *guarded) { s = ms.get(m.ShardOf(address)) })
	text, isAnswered := "", false
	var err error
	if s != nil {
		text, isAnswered, err = s.link.AskNodes(ctx)
	}
	if !isAnswered {
		text, err = ms.at(address).AskNodes(ms.ctx)
	}
	if err != nil {
		return nil, err
	}
	t, err := cluster.ParseTopology(text, address, askedAt)
	if err != nil {
		return nil, wire.Unavailablef("Redis at %s cannot be understood: %v", address, err)
	}
	ms.with(func(m *guarded) { m.Confirmed(protocol.Now(), t, address) })
	return t, nil
}

// at returns the way to a node. Nodes announce IP addresses, for which there are no certificates: the
// name in the certificate is that of the URL then.
func (ms *masters) at(address string) (d *link.Dialer) {
	ms.with(func(m *guarded) { d = m.login.At(address) })
	return d
}

// relogin returns the way to a node with the user and the password of a URL that was read again, which
// must name the same Cluster.
func (ms *masters) relogin(d *link.Dialer, address string) (at *link.Dialer, err error) {
	ms.with(func(m *guarded) {
		if !slices.ContainsFunc(d.Nodes, m.Knows) || d.HasTLS() != m.login.HasTLS() {
			err = namesAnother(d)
			return
		}
		m.login = d
		m.Seeds(d.Nodes)
		at = d.At(address)
	})
	return at, err
}

// readLogin reads the user and the password of the Redis URL again, if no node could be asked with those
// that were read last. A connection to a master does so by itself.
func (ms *masters) readLogin() {
	wasAsked := false
	if ms.with(func(m *guarded) { wasAsked = m.Trouble() == "" }); wasAsked || ms.cfg.ReadURL == nil {
		return
	}
	if d, err := ms.cfg.readAgain(); err == nil {
		_, _ = ms.relogin(d, "")
	}
}

// OthersServe ends the reason why one master of a Cluster cannot be used.
const OthersServe = "; locks that other masters of the Cluster have are served, unless cluster-require-full-coverage is yes"

// onUp notes that a shard can be asked, and returns what a successor is to know.
func (ms *masters) onUp(n redisop.Shard, id *wire.Identity) (raised wire.Identity) {
	ms.update(func(m *cluster.Map, now int64) { raised = m.Up(now, n, id) })
	return raised
}

// onDown notes that a shard cannot be asked, and returns the reason.
func (ms *masters) onDown(n redisop.Shard, err error) error {
	othersServe := false
	ms.update(func(m *cluster.Map, now int64) {
		m.Down(now, n)
		othersServe = m.OthersServe()
	})
	if othersServe {
		return wire.Unavailablef("%v%s", err, OthersServe)
	}
	return err
}

// onResults notes the tokens of results. raised is the identity of a node whose floor a token raised; nil: none did. It
// returns what a successor is to know then.
func (ms *masters) onResults(results []redisop.Result, raised *wire.Identity) *wire.Identity {
	if raised != nil {
		var id wire.Identity
		ms.with(func(m *guarded) { id = m.Raised(protocol.Now(), raised) })
		raised = &id
	}
	for i := range results {
		if r := &results[i]; r.Token != 0 && !ms.has(r.Shard, ms.keys.SlotOf(r.Name)) {
			ms.update(func(m *cluster.Map, now int64) { m.Drew(now, r.Shard, r.Name, r.Token) })
		}
	}
	return raised
}

// floorAt is the largest floor of all nodes.
func (ms *masters) floorAt(now int64) (floor int64) {
	ms.with(func(m *guarded) { floor = m.FloorAt(now) })
	return floor
}

// do sends operations, each to its shard.
func (ms *masters) do(ops []redisop.Op) {
	slices.SortStableFunc(ops, func(a, b redisop.Op) int { return int(a.Shard) - int(b.Shard) })
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].Shard == ops[0].Shard {
			n++
		}
		if s := ms.get(ops[0].Shard); s == nil || !s.link.Do(ops[:n]) {
			ms.refuse(pipeline.NotSent(ops[:n], "the node of the Cluster that had the lock has left it"))
		}
		ops = ops[n:]
	}
}

// refuse delivers results, from a goroutine of its own.
func (ms *masters) refuse(results []redisop.Result) {
	ms.with(func(m *guarded) {
		if !m.IsClosed() {
			ms.done.Go(func() { ms.cfg.tell(Event{Kind: Results, Results: results}) })
		}
	})
}

// askThere sends operations to the node that has their keys already, although another one has the slot.
func (ms *masters) askThere(r wire.Redirect, ops []redisop.Op) {
	n := redisop.Shard(0)
	ms.update(func(m *cluster.Map, now int64) { n = m.Asked(now, r) })
	if s := ms.get(n); s != nil && s.link.DoAsking(ops) {
		return
	}
	ms.cfg.tell(Event{Kind: Results, Results: pipeline.NotSent(ops, "a node of the Cluster that has the lock cannot be connected")})
}

// shardOf returns the shard of the node that a redirect names; nil: there is no room for one.
func (ms *masters) shardOf(r wire.Redirect) *shard {
	n := redisop.Shard(0)
	ms.update(func(m *cluster.Map, now int64) { n = m.At(now, r.Address) })
	return ms.get(n)
}

// has reports whether a shard has a slot.
func (ms *masters) has(n redisop.Shard, slot uint16) bool { return ms.owner(slot) == n }

// ofKey returns the shard that has the slot of a key; if none has, any.
func (ms *masters) ofKey(key string) *shard {
	if s := ms.get(ms.owner(wire.SlotOf(key))); s != nil {
		return s
	}
	for _, s := range *ms.shards.Load() {
		if s != nil {
			return s
		}
	}
	return nil
}

// get returns a shard; nil: it is none.
func (ms *masters) get(n redisop.Shard) *shard {
	if shards := *ms.shards.Load(); int(n) < len(shards) {
		return shards[n]
	}
	return nil
}

// close ends all connections, for as long as ctx allows.
func (ms *masters) close(ctx context.Context) error {
	ms.update(func(m *cluster.Map, _ int64) { m.Close() }) // what was opened before is among the shards
	ms.stop()
	ms.done.Wait()
	shards := *ms.shards.Load()
	errs := make([]error, len(shards))
	var wg sync.WaitGroup
	for i, s := range shards {
		if s != nil {
			wg.Go(func() { errs[i] = s.link.Close(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

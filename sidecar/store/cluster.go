package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// cluster knows which master of a Cluster has which slot, and has one connection to each of them: a
// link. It decides nothing about locks. It tells the lock table of each slot that moves (OnRoute), and the
// lock table names the shard to which an operation goes.
//
// It learns of a move in three ways:
//   - A node answers MOVED: the operations were not executed, and another node has the slot.
//   - A node answers CLUSTER NODES. One is asked at the start, each redisop.TopologyRetry while a slot has no
//     master that is connected, within the same time after a MOVED or the end of a connection, and each minute.
//   - A node ends a sharded subscription by itself, because the slot has left it. Then one is asked.
//
// What has been migrating from one node to another one is in openSlots.
//
// Each of them may be out of date. An answer with an older config epoch does not take a slot from a
// master that is connected; MOVED always does, because the node that answers it does not serve the slot.
type cluster struct {
	cfg   Config
	dial  *dialer // what the URL says, with the user and the password that were read last
	spare resultPool
	keys  wire.Keyspace
	place string // that the first URL names, for people

	shards atomic.Pointer[[]*link] // by redisop.Shard; the first one is nil
	owners [redisop.Slots]atomic.Uint32

	conns atomic.Uint32 // connections made so far, to all nodes
	wake  chan struct{} // a node is to be asked
	later chan struct{} // the same, within redisop.TopologyRetry
	hosts atomic.Int32  // that use this Cluster with the same key prefix; 0: it is not known
	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup

	delivering sync.Mutex // held while routes are delivered; locked before mu and link.mu

	mu         sync.Mutex // guards what follows; never held during I/O or a callback
	byAddress  map[string]redisop.Shard
	free       []redisop.Shard   // whose nodes have left the Cluster
	id         string            // of the Cluster: see topology
	nodes      map[string]bool   // the same
	aliases    map[string]string // the same
	replicas   []string          // nodes that have no slots, and can be asked
	epochs     [redisop.Slots]uint64
	moves      [redisop.Slots]slotMoves
	routes     []redisop.SlotRange // not delivered yet
	floor      wire.Identity       // the largest floor of tokens of all nodes
	isClosed   bool                // no shard is added, and nothing else is begun
	trouble    string              // why no node can be asked; "": one was
	isTooLarge bool                // that there are too many masters was logged

	counts       clusterCounts
	open         openSlots
	askingLogged atomic.Bool // that ASKING is refused was logged
}

// slotMoves bounds how often MOVED moves a slot: nodes that do not know of each other's state name each
// other. An answer to a question from before the last move does not move it back.
type slotMoves struct {
	begun int64 // of the window
	last  int64
	n     int
}

const (
	// maxShards bounds the masters that are connected. Redis recommends a thousand nodes at most.
	maxShards = 1024

	// A slot is moved by MOVED at most maxMoves times in movesWindow. Otherwise its operations wait.
	maxMoves    = 5
	movesWindow = int64(100 * time.Millisecond)

	// A node is asked which master has which slot each topologyInterval; while a slot has no master, or one
	// that is not connected, each redisop.TopologyRetry. Between two questions is topologyPause.
	topologyInterval = time.Minute
	topologyPause    = 100 * time.Millisecond

	// topologyTimeout bounds the question to one node.
	topologyTimeout = time.Second
)

func newCluster(cfg Config, d *dialer, spare resultPool) *cluster {
	if _, rest, isTagged := strings.Cut(cfg.KeyPrefix, "{"); isTagged && strings.Contains(rest, "}") && cfg.Log != nil {
		cfg.Log.Info("the key prefix has a hash tag: all locks of this host are in one slot, so one master of the Cluster has all of them")
	}
	cl := &cluster{cfg: cfg, dial: d, spare: spare, keys: d.Keys, place: d.Address, wake: make(chan struct{}, 1), later: make(chan struct{}, 1), byAddress: make(map[string]redisop.Shard), floor: cfg.Last, trouble: d.notYet()}
	cl.shards.Store(&[]*link{nil})
	cl.ctx, cl.stop = context.WithCancel(context.Background())
	return cl
}

// run learns which master has which slot, until close.
func (cl *cluster) run() {
	for {
		begun := time.Now()
		isSettled := cl.learn()
		hasOpen := cl.checkOpen()
		retry := cl.retry()
		wait := retry*9/10 + rand.N(retry/5)
		switch { // the hosts of a Cluster do not ask in step
		case isSettled && hasOpen:
			wait = openInterval*3/4 + rand.N(openInterval/2)
		case isSettled:
			wait = topologyInterval*3/4 + rand.N(topologyInterval/2)
		}
		due := time.Now().Add(wait)
		t := time.NewTimer(wait)
		later := cl.later
		for isDue := false; !isDue; {
			isDue = true
			select {
			case <-t.C:
			case <-later:
				t.Reset(min(time.Until(due), retry/2+rand.N(retry/2))) // hosts that have a reason at one moment do not ask in step
				later, isDue = nil, false
			case <-cl.wake:
				t.Stop()
				pause(cl.ctx, max(topologyPause-time.Since(begun), topologyPause/4))
			case <-cl.ctx.Done():
				t.Stop()
			}
		}
		if cl.ctx.Err() != nil {
			return
		}
	}
}

// retry is how often a node is asked while a slot has no master that is connected.
func (cl *cluster) retry() time.Duration {
	connected := 0
	for _, c := range cl.withSlots() {
		if c.isUp.Load() {
			connected++
		}
	}
	cl.mu.Lock()
	nodes := len(cl.nodes)
	cl.mu.Unlock()
	return redisop.TopologyRetry(int(cl.hosts.Load()), connected, nodes)
}

// refreshLater has a node asked within redisop.TopologyRetry: when slots move one by one, each host gets many
// MOVED; and when a master fails, all hosts notice at once, and no node knows of another one so soon.
func (cl *cluster) refreshLater() {
	select {
	case cl.later <- struct{}{}:
	default:
	}
}

// refresh has a node asked.
func (cl *cluster) refresh() {
	select {
	case cl.wake <- struct{}{}:
	default:
	}
}

// learn asks nodes until one answers, and reports whether each slot has a master that is connected.
func (cl *cluster) learn() (isSettled bool) {
	cl.readLogin()
	var errs []string
	for _, address := range cl.askable() {
		t, err := cl.ask(address)
		if cl.ctx.Err() != nil {
			return false
		}
		if err == nil {
			if err = cl.apply(t, address); err == nil {
				cl.note("")
				return cl.isSettled()
			}
		}
		if len(errs) < 3 {
			errs = append(errs, err.Error())
		}
	}
	cl.note(fmt.Sprintf("no node of the Cluster at %s says which master has which slot: %s", cl.place, strings.Join(errs, "; ")))
	return false
}

// askable returns the addresses of the nodes that may be asked, in random order: those that are
// connected first.
func (cl *cluster) askable() []string {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	var connected []string
	others := slices.Concat(cl.replicas, cl.dial.nodes)
	for address, n := range cl.byAddress {
		switch c := cl.get(n); {
		case c.slots.Load() == 0: // it may be a node of another Cluster by now
		case c.isUp.Load():
			connected = append(connected, address)
		default:
			others = append(others, address)
		}
	}
	for _, list := range [][]string{connected, others} {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	all := append(connected, others...)
	seen := make(map[string]bool)
	return slices.DeleteFunc(all, func(address string) bool {
		defer func() { seen[address] = true }()
		return seen[address]
	})
}

// ask asks one node, on the connection to it if there is one. A connection for the question costs the
// node three times as much (BenchmarkRedisTopology), and ten thousand hosts ask when a master fails.
func (cl *cluster) ask(address string) (*topology, error) {
	askedAt := protocol.Now()
	ctx, cancel := context.WithTimeout(cl.ctx, topologyTimeout)
	defer cancel()
	d := cl.at(address)
	text, isAnswered, err := cl.askConnected(ctx, address)
	if !isAnswered {
		text, err = d.askNodes(cl.ctx)
	}
	switch {
	case err == nil:
	case !isReply(err):
		return nil, err
	case strings.Contains(err.Error(), "cluster support disabled"):
		return nil, wire.Unavailablef("Redis at %s is no node of a Cluster; write redis:// instead of redis+cluster://", address)
	case wire.Code(err.Error()) == "NOPERM":
		return nil, wire.Unavailablef("Redis at %s does not permit this user to ask which master has which slot; let its ACL have +cluster|nodes (%s)", address, wire.Clip(err.Error()))
	default:
		return nil, d.handshakeError(err)
	}
	t, err := parseTopology(text, address)
	if err != nil {
		return nil, wire.Unavailablef("Redis at %s cannot be understood: %v", address, err)
	}
	t.askedAt = askedAt
	cl.open.confirm(address, t.moving)
	return t, nil
}

// askConnected asks a node on the connection to it. isAnswered is false if there is none, if the question
// would have to wait there, or if its answer is longer than what is kept.
func (cl *cluster) askConnected(ctx context.Context, address string) (text string, isAnswered bool, err error) {
	cl.mu.Lock()
	c := cl.get(cl.byAddress[address])
	cl.mu.Unlock()
	if c == nil {
		return "", false, nil
	}
	type result struct {
		answer wire.Reply
		err    error
	}
	results := make(chan result, 1)
	q := &pipeline.Query{Commands: [][]string{{"cluster", "nodes"}}, Done: func(replies []wire.Reply, err error) {
		if err != nil {
			results <- result{err: err}
			return
		}
		results <- result{answer: replies[0]}
	}}
	if !c.askAtOnce(q) {
		return "", false, nil
	}
	select {
	case r := <-results:
		switch {
		case r.err != nil:
			return "", true, r.err
		case r.answer.Kind == '-':
			return "", true, refusedReply(r.answer.Text)
		case r.answer.Kind != '$':
			return "", false, nil
		}
		return r.answer.Text, true, nil
	case <-ctx.Done():
		return "", true, wire.Unavailablef("Redis at %s does not answer", address)
	}
}

// refusedReply is an error that Redis answered: a redis.Error, as those of go-redis are.
type refusedReply string

func (e refusedReply) Error() string { return string(e) }
func (refusedReply) RedisError()     {}

// askNodes asks a node on a connection of its own. The end of ctx ends the connection.
func (d *dialer) askNodes(ctx context.Context) (text string, err error) {
	dialing, cancel := context.WithTimeout(ctx, topologyTimeout)
	defer cancel()
	l, err := d.dial(dialing, &lostAddresses{})
	if err != nil {
		return "", err
	}
	defer l.close()
	defer context.AfterFunc(ctx, func() { l.wire.Close() })()
	_ = l.wire.SetDeadline(time.Now().Add(topologyTimeout))
	if text, err = l.client.ClusterNodes(ctx).Result(); err != nil && !isReply(err) {
		err = d.handshakeError(err)
	}
	return text, err
}

// tryCluster connects to each master of a Cluster, and ends the connections. It fails if it reaches none.
func tryCluster(ctx context.Context, cfg Config, d *dialer) (Found, error) {
	cl := newCluster(cfg, d, nil)
	defer cl.stop()
	defer context.AfterFunc(ctx, cl.stop)()
	var t *topology
	var err error
	for _, node := range cl.askable() {
		if t, err = cl.ask(node); err == nil {
			break
		}
	}
	if err != nil {
		return Found{}, err
	}
	found := Found{Address: d.place(), RunID: t.id, Nodes: t.nodes, Masters: slices.Sorted(maps.Keys(t.masters)), Down: make(map[string]error)}
	if t.covered < redisop.Slots {
		found.Down[""] = wire.Unavailablef("the Cluster at %s has masters for %d of its %d slots only; see CLUSTER NODES", d.Address, t.covered, redisop.Slots)
	}
	errs, risks := make([]error, len(found.Masters)), make([]string, len(found.Masters))
	var connecting sync.WaitGroup
	for i, master := range found.Masters {
		connecting.Go(func() {
			s, err := d.at(master).connect(ctx, &lostAddresses{}, wire.Identity{})
			if errs[i] = err; err == nil {
				s.close()
				risks[i] = s.risk().String()
			}
		})
	}
	connecting.Wait()
	for i, err := range errs {
		if err != nil {
			found.Down[found.Masters[i]] = err
		}
	}
	found.Risk = cmp.Or(risks...)
	if !slices.Contains(errs, nil) {
		return Found{}, cmp.Or(errors.Join(errs[:min(1, len(errs))]...), found.Down[""])
	}
	return found, nil
}

// at returns the way to a node. Nodes announce IP addresses, for which there are no certificates: the
// name in the certificate is that of the URL then.
func (cl *cluster) at(address string) *dialer {
	cl.mu.Lock()
	login := cl.dial
	cl.mu.Unlock()
	return login.at(address)
}

// relogin returns the way to a node with the user and the password of a URL that was read again, which
// must name the same Cluster.
func (cl *cluster) relogin(d *dialer, address string) (*dialer, error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	isSame := slices.ContainsFunc(d.nodes, func(node string) bool {
		_, isKnown := cl.byAddress[node]
		return isKnown || slices.Contains(cl.dial.nodes, node) || slices.Contains(cl.replicas, node)
	})
	if !isSame || (d.options.TLSConfig == nil) != (cl.dial.options.TLSConfig == nil) {
		return nil, wire.Unavailablef("it names another Redis, at %s; reload the daemon to use it", d.place())
	}
	cl.dial = d
	return d.at(address), nil
}

// readLogin reads the user and the password of the Redis URL again, if no node could be asked with those
// that were read last. A connection to a master does so by itself.
func (cl *cluster) readLogin() {
	cl.mu.Lock()
	wasAsked := cl.trouble == ""
	cl.mu.Unlock()
	if wasAsked || cl.cfg.ReadURL == nil {
		return
	}
	cfg := cl.cfg
	var err error
	if cfg.URL, err = cfg.ReadURL(); err != nil {
		return
	}
	if d, err := parse(cfg); err == nil {
		_, _ = cl.relogin(d, cl.place)
	}
}

// apply takes in what a node knows. It is not taken if the node knows less than half of the masters, as
// one does that was just added or reset.
func (cl *cluster) apply(t *topology, asked string) error {
	cl.mu.Lock()
	if cl.isClosed {
		cl.mu.Unlock()
		return nil
	}
	known := 0
	for _, c := range cl.withSlots() {
		if _, ok := t.masters[c.dial.Address]; ok {
			known++
		}
	}
	if all := len(cl.withSlots()); t.covered < redisop.Slots && 2*known <= all && all > 0 || t.covered == 0 {
		cl.mu.Unlock()
		return wire.Unavailablef("it knows masters of %d of the %d slots only", t.covered, redisop.Slots)
	}
	if !cl.isSame(t, asked) {
		cl.mu.Unlock()
		return wire.Unavailablef("Redis at %s is a node of another Cluster by now", asked)
	}
	cl.id, cl.nodes, cl.aliases, cl.replicas = t.id, t.nodes, t.aliases, t.replicas
	changed := false
	returned := make(map[redisop.Shard]bool) // shards that got slots, perhaps some that they had before
	for slot := range t.owners {
		address := t.owners[slot]
		epoch := t.masters[address]
		owner := redisop.Shard(cl.owners[slot].Load())
		if c := cl.get(owner); c != nil && c.isUp.Load() && epoch < cl.epochs[slot] || cl.moves[slot].last > t.askedAt {
			continue
		}
		n := redisop.Shard(0)
		if address != "" {
			n = cl.shardAt(address)
		}
		if was := cl.epochs[slot]; n == owner && was != 0 && epoch > was { // 0: of a MOVED
			returned[n] = true
		}
		cl.epochs[slot] = epoch
		if n != owner {
			changed = true
			cl.setOwner(uint16(slot), n)
		}
	}
	floor := cl.floor
	cl.mu.Unlock()
	for n := range returned {
		if c := cl.get(n); c != nil {
			c.liftFloor(&floor, true)
		}
	}
	if changed {
		cl.deliverRoutes()
	}
	cl.endGone(t)
	return nil
}

// goneAfter is for how long no node may have named a node before its shard is ended: nodes learn of a new one at
// different moments, and an answer may be of one that does not know it yet.
const goneAfter = int64(30 * time.Second)

// endGone ends the shards whose nodes have left the Cluster: they are not connected, have no slots, and the
// Cluster does not know them as nodes that work, nor has any named them for goneAfter. Their numbers are used
// again. Otherwise a Cluster whose nodes get new addresses, as in Kubernetes, would use up maxShards.
//
// Each route is delivered before: with a number that is used again, the lock table would not see that a slot
// has moved from one node to the other.
func (cl *cluster) endGone(t *topology) {
	gone := cl.takeGone(t)
	for _, c := range gone {
		ctx, cancel := context.WithTimeout(cl.ctx, topologyTimeout)
		_ = c.close(ctx) // what it owes has its results, whatever the error
		cancel()
		c.cfg.Log.Info("this node has left the Cluster: it is connected no more")
		if cl.cfg.OnDown != nil {
			cl.cfg.OnDown(c.shard, wire.Unavailable("this master of the Cluster is not connected yet")) // the next one with this number
		}
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, c := range gone {
		cl.free = append(cl.free, c.shard)
	}
}

// takeGone removes the shards that are to be ended from those that can be asked, and returns them; none while
// a route is not delivered.
func (cl *cluster) takeGone(t *topology) (gone []*link) {
	cl.delivering.Lock()
	defer cl.delivering.Unlock()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if len(cl.routes) > 0 {
		return nil
	}
	slots := cl.slotsByShard()
	shards := slices.Clone(*cl.shards.Load())
	for n, c := range shards {
		if c == nil || slots[n] > 0 || c.namedAt > t.askedAt-goneAfter || c.isUp.Load() || slices.Contains(t.replicas, c.dial.Address) {
			continue
		}
		if _, isMaster := t.masters[c.dial.Address]; !isMaster {
			gone = append(gone, c)
			shards[n] = nil
			delete(cl.byAddress, c.dial.Address)
		}
	}
	cl.shards.Store(&shards)
	return gone
}

// isSame reports whether an answer is of the same Cluster: most nodes of the smaller answer are in both.
// A master that was removed can have become a node of another Cluster, with the same id, and its address
// another server's. If no master is connected, a node of the URL is believed. The caller holds mu.
func (cl *cluster) isSame(t *topology, asked string) bool {
	common := 0
	for id := range t.nodes {
		if cl.nodes[id] {
			common++
		}
	}
	if len(cl.nodes) == 0 || 2*common > min(len(t.nodes), len(cl.nodes)) {
		return true
	}
	isConnected := slices.ContainsFunc(cl.withSlots(), func(c *link) bool { return c.isUp.Load() })
	return !isConnected && slices.Contains(cl.dial.nodes, asked)
}

// onMoved takes in that a node does not serve a slot, and which one does as far as it knows.
func (cl *cluster) onMoved(r wire.Redirect) {
	cl.mu.Lock()
	n := cl.shardAt(cl.named(r.Address))
	m := &cl.moves[r.Slot]
	if now := protocol.Now(); now-m.begun > movesWindow {
		*m = slotMoves{begun: now}
	}
	// Several operations that were under way have the same answer.
	moves := n != 0 && n != redisop.Shard(cl.owners[r.Slot].Load()) && m.n < maxMoves
	if moves {
		m.n++
		m.last = protocol.Now()
		cl.epochs[r.Slot] = 0 // the node that it names may not know of that itself yet
		cl.setOwner(r.Slot, n)
	}
	cl.mu.Unlock()
	if moves {
		cl.deliverRoutes()
	}
	if c := cl.get(n); c != nil && c.isUp.Load() {
		cl.refreshLater() // the answer says all that matters now
	} else {
		cl.refresh()
	}
}

// named returns the address under which a node is known. MOVED and ASK may have its host name, and CLUSTER
// NODES has its IP address. The caller holds mu.
func (cl *cluster) named(address string) string {
	if known, ok := cl.aliases[address]; ok {
		return known
	}
	return address
}

// setOwner notes that a shard has a slot. The caller holds mu, and calls deliverRoutes.
func (cl *cluster) setOwner(slot uint16, n redisop.Shard) {
	cl.owners[slot].Store(uint32(n))
	if last := len(cl.routes) - 1; last >= 0 && cl.routes[last].Shard == n && cl.routes[last].Last+1 == slot {
		cl.routes[last].Last = slot
		return
	}
	cl.routes = append(cl.routes, redisop.SlotRange{First: slot, Last: slot, Shard: n})
}

// deliverRoutes tells the lock table which slots have moved, in the order in which they did. Before, the
// floor of tokens of a node is at least that of the others, and its clock is asked for: the counters of a
// slot may have lost their last values on the way, and other hosts may have drawn these.
//
// When it returns, all routes that were noted before are delivered, by whichever goroutine: the results of
// operations that were not executed follow.
func (cl *cluster) deliverRoutes() {
	cl.delivering.Lock()
	defer cl.delivering.Unlock()
	cl.mu.Lock()
	routes, floor := cl.routes, cl.floor
	cl.routes = nil
	if len(routes) > 0 {
		cl.counts.changes.Add(1)
	}
	cl.countSlots() // who sees the new number of slots sees the change, too
	cl.mu.Unlock()
	lifted := make(map[redisop.Shard]bool)
	for _, r := range routes {
		if c := cl.get(r.Shard); c != nil && !lifted[r.Shard] {
			lifted[r.Shard] = true
			c.liftFloor(&floor, true)
		}
	}
	if len(routes) > 0 && cl.cfg.OnRoute != nil {
		cl.cfg.OnRoute(routes)
	}
}

// slotsByShard returns how many slots each shard has, also if that is not delivered yet. The caller holds mu.
func (cl *cluster) slotsByShard() []int32 {
	slots := make([]int32, len(*cl.shards.Load()))
	for i := range cl.owners {
		slots[cl.owners[i].Load()]++
	}
	return slots
}

// countSlots notes how many slots each shard has. The caller holds mu.
func (cl *cluster) countSlots() {
	slots := cl.slotsByShard()
	for n, c := range *cl.shards.Load() {
		if c == nil {
			continue
		}
		if had := c.slots.Swap(slots[n]); had == 0 && slots[n] > 0 {
			c.connectNow()
		}
	}
}

// withSlots returns the shards that have slots.
func (cl *cluster) withSlots() (shards []*link) {
	for _, c := range *cl.shards.Load() {
		if c != nil && c.slots.Load() > 0 {
			shards = append(shards, c)
		}
	}
	return shards
}

// isSettled reports whether each slot has a master that is connected.
func (cl *cluster) isSettled() bool {
	for i := range cl.owners {
		if c := cl.get(redisop.Shard(cl.owners[i].Load())); c == nil || !c.isUp.Load() {
			return false
		}
	}
	return true
}

// get returns a shard; nil: it is none.
func (cl *cluster) get(n redisop.Shard) *link {
	if shards := *cl.shards.Load(); int(n) < len(shards) {
		return shards[n]
	}
	return nil
}

// shardAt returns the shard of the node at an address, which it begins to connect; 0: there are too many. A
// shard stays until its node has left the Cluster (endGone), also if it has no slots any more: then it is
// connected now and then. The caller holds mu.
func (cl *cluster) shardAt(address string) redisop.Shard {
	if n, ok := cl.byAddress[address]; ok {
		cl.get(n).namedAt = protocol.Now()
		return n
	}
	shards := slices.Clone(*cl.shards.Load())
	n := redisop.Shard(len(shards))
	switch last := len(cl.free) - 1; {
	case cl.isClosed:
		return 0
	case last >= 0:
		n, cl.free = cl.free[last], cl.free[:last]
	case len(shards) > maxShards:
		if !cl.isTooLarge {
			cl.isTooLarge = true
			cl.cfg.Log.Error("the Cluster has more masters than are connected; locks of their slots are unavailable", "masters", maxShards)
		}
		return 0
	default:
		shards = append(shards, nil)
	}
	cfg := cl.cfg
	cfg.Log = cl.cfg.Log.With("master", address)
	cfg.Last = wire.Identity{}
	cfg.OnUp = func(n redisop.Shard, dataLost, listening bool, id wire.Identity) {
		cl.onUp(n, dataLost, listening, &id)
	}
	cfg.OnDown = func(n redisop.Shard, err error) { cl.onDown(n, err) }
	cfg.OnResults = func(results []redisop.Result, raised *wire.Identity) { cl.onResults(results, raised) }
	c := newLink(cfg, cl.dial.at(address), cl.spare)
	c.cluster, c.shard, c.namedAt = cl, n, protocol.Now()
	shards[n] = c
	cl.shards.Store(&shards)
	cl.byAddress[address] = n
	go c.run()
	return n
}

// onUp passes on that a shard can be asked. The identity that a successor gets has the floor of tokens, and
// nothing of a node: it does not know which node had which slot, and asserts what it holds.
func (cl *cluster) onUp(n redisop.Shard, dataLost, listening bool, id *wire.Identity) {
	if cl.cfg.OnUp != nil {
		cl.cfg.OnUp(n, dataLost, listening, *cl.raise(id))
	}
}

// OthersServe ends the reason why one master of a Cluster cannot be used.
const OthersServe = "; locks that other masters of the Cluster have are served, unless cluster-require-full-coverage is yes"

func (cl *cluster) onDown(n redisop.Shard, err error) {
	if cl.cfg.OnDown != nil {
		if len(cl.withSlots()) > 1 {
			err = wire.Unavailablef("%v%s", err, OthersServe)
		}
		cl.cfg.OnDown(n, err)
	}
	cl.refreshLater()
}

func (cl *cluster) onResults(results []redisop.Result, raised *wire.Identity) {
	if cl.cfg.OnResults == nil {
		return
	}
	if raised != nil {
		raised = cl.raise(raised)
	}
	for i := range results {
		cl.liftAbove(&results[i])
	}
	cl.cfg.OnResults(results, raised)
}

// liftAbove has the tokens of the shard that has the slot of a lock be above one that another shard drew
// before: it came after the route.
func (cl *cluster) liftAbove(r *redisop.Result) {
	if r.Token == 0 {
		return
	}
	if n := redisop.Shard(cl.owners[cl.keys.SlotOf(r.Name)].Load()); n != r.Shard {
		if c := cl.get(n); c != nil {
			c.liftFloor(&wire.Identity{Floor: int64(r.Token), FloorAt: protocol.Now()}, false)
		}
	}
}

// floorAt is the largest floor of all nodes.
func (cl *cluster) floorAt(now int64) int64 {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if !cl.floor.Known() {
		return 0
	}
	return cl.floor.Above(now)
}

// raise notes the floor of a node, and returns what a successor is to know.
func (cl *cluster) raise(id *wire.Identity) *wire.Identity {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	now := protocol.Now()
	if floor := id.Above(now); !cl.floor.Known() || floor > cl.floor.Above(now) {
		cl.floor = wire.Identity{Floor: floor, FloorAt: now}
	}
	raised := cl.floor
	raised.RunID = cl.id
	return &raised
}

// note notes why no node can be asked; "": one was. Locks of slots without a master are refused with it.
func (cl *cluster) note(why string) {
	cl.mu.Lock()
	changed := cl.trouble != why
	cl.trouble = why
	cl.mu.Unlock()
	if why == "" {
		why = fmt.Sprintf("no master of the Cluster at %s has the slot of this lock; see CLUSTER NODES, and assign it", cl.place)
	} else if changed {
		cl.cfg.Log.Warn("the topology of the Cluster is not known", "reason", why)
	}
	if changed && cl.cfg.OnDown != nil {
		cl.cfg.OnDown(0, wire.Unavailable(why))
	}
}

// do sends operations, each to its shard.
func (cl *cluster) do(ops []redisop.Op) {
	slices.SortStableFunc(ops, func(a, b redisop.Op) int { return int(a.Shard) - int(b.Shard) })
	for len(ops) > 0 {
		n := 1
		for n < len(ops) && ops[n].Shard == ops[0].Shard {
			n++
		}
		if c := cl.get(ops[0].Shard); c == nil || !c.do(ops[:n]) {
			cl.refuse(pipeline.NotSent(ops[:n], "the node of the Cluster that had the lock has left it"))
		}
		ops = ops[n:]
	}
}

// refuse delivers results, from a goroutine of its own.
func (cl *cluster) refuse(results []redisop.Result) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if !cl.isClosed {
		cl.done.Go(func() { cl.onResults(results, nil) })
	}
}

// shardOf returns the connection to the node that a redirect names; nil: there is no room for one.
func (cl *cluster) shardOf(r wire.Redirect) *link {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.get(cl.shardAt(cl.named(r.Address)))
}

// askThere sends operations to the node that has their keys already, although another one has the slot.
func (cl *cluster) askThere(r wire.Redirect, ops []redisop.Op) {
	if c := cl.shardOf(r); c != nil && c.doAsking(ops) {
		return
	}
	cl.onResults(pipeline.NotSent(ops, "a node of the Cluster that has the lock cannot be connected"), nil)
}

// has reports whether a shard has the slot of a key.
func (cl *cluster) has(n redisop.Shard, key string) bool {
	return redisop.Shard(cl.owners[wire.SlotOf(key)].Load()) == n
}

// ofKey returns the shard that has the slot of a key; if none has, any.
func (cl *cluster) ofKey(key string) *link {
	if c := cl.get(redisop.Shard(cl.owners[wire.SlotOf(key)].Load())); c != nil {
		return c
	}
	for _, c := range *cl.shards.Load() {
		if c != nil {
			return c
		}
	}
	return nil
}

// close ends all connections, for as long as ctx allows.
func (cl *cluster) close(ctx context.Context) error {
	cl.mu.Lock()
	cl.isClosed = true
	cl.mu.Unlock()
	cl.stop()
	cl.done.Wait()
	shards := *cl.shards.Load()
	errs := make([]error, len(shards))
	var wg sync.WaitGroup
	for i, c := range shards {
		if c != nil {
			wg.Go(func() { errs[i] = c.close(ctx) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

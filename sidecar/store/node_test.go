package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A fakeNode is a node of a Cluster that answers what a test sets. It has no keys: each Take gets the
// lock, and each Drop releases it, unless onRun answers.
type fakeNode struct {
	t       testing.TB
	address string
	number  int

	mu       sync.Mutex // guards what follows
	nodes    string     // the answer to CLUSTER NODES
	onRun    func(run *nodeRun) (answer string)
	onOther  func(words []string) (answer string) // to a command that the node does not know
	runs     []nodeRun
	token    int64         // the last one, of all locks
	ahead    time.Duration // of its clock
	clocks   int           // how often its clock was asked for
	greeted  int           // connections that subscribe to a sidecar's channel
	topology int           // how often CLUSTER NODES was asked
	conns    map[net.Conn]bool
	isClosed bool
}

// nodeRun is one run of a script for locks.
type nodeRun struct {
	script   *wire.Script
	keys     []string
	args     []string
	locks    []string // among the keys
	statuses []string // the usual answer, for each operation
	isAsking bool
}

// floors returns what tokens are above, and those of new counters, of a run for Takes and Drops.
func (r *nodeRun) floors() (floor, birth int64) {
	terms := r.args[1] // see main.lua
	birth, _ = strconv.ParseInt(strings.Fields(terms[13:])[1], 10, 64)
	return floorOf(terms), birth
}

// floorOf returns what tokens are above, of the terms of a run for Takes and Drops.
func floorOf(terms string) (floor int64) {
	for i := range 7 {
		floor += int64(terms[6+i]) << (8 * i)
	}
	return floor
}

func startFakeNode(t testing.TB, number int) *fakeNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNode{t: t, address: l.Addr().String(), number: number, conns: make(map[net.Conn]bool), token: time.Now().UnixMicro()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			if n.conns[conn] = true; n.isClosed {
				conn.Close()
			}
			n.mu.Unlock()
			serving.Go(func() { n.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.mu.Lock()
		n.isClosed = true
		n.mu.Unlock()
		n.cut()
		serving.Wait()
	})
	return n
}

// cut ends all connections.
func (n *fakeNode) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		conn.Close()
	}
}

// push sends a text on all connections.
func (n *fakeNode) push(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		_, _ = io.WriteString(conn, text)
	}
}

// set changes what the node answers.
func (n *fakeNode) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
}

// seen returns the runs so far, without those of probes.
func (n *fakeNode) seen() []nodeRun {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.runs)
}

// asked returns how often the clock was asked for.
func (n *fakeNode) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.clocks
}

func (n *fakeNode) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	isAsking := false
	for {
		words, err := readCommand(in)
		if err != nil {
			return
		}
		verb := strings.ToLower(words[0])
		_, _ = io.WriteString(conn, n.answer(verb, words, isAsking))
		isAsking = verb == "asking"
	}
}

// readCommandText reads a command that is all of a text.
func readCommandText(text []byte) (words []string, err error) {
	in := bufio.NewReader(bytes.NewReader(text))
	words, err = readCommand(in)
	if _, end := in.ReadByte(); err == nil && end != io.EOF {
		err = errors.New("there is more than one command")
	}
	return words, err
}

func array(items ...string) string {
	return fmt.Sprintf("*%d\r\n%s", len(items), strings.Join(items, ""))
}

func (n *fakeNode) answer(verb string, words []string, isAsking bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	runID := fmt.Sprintf("%08x%032x", n.number, n.number)
	switch verb {
	case "hello":
		fields := []string{
			bulk("server"), bulk("redis"), bulk("version"), bulk("7.0.15"), bulk("proto"), ":3\r\n", bulk("id"), ":7\r\n",
			bulk("mode"), bulk("cluster"), bulk("role"), bulk("master"),
		}
		if len(words) > 1 && words[1] == "3" {
			return fmt.Sprintf("%%%d\r\n%s", len(fields)/2, strings.Join(fields, ""))
		}
		return array(fields...)
	case "info":
		return bulk("redis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:" + runID + "\r\nrole:master\r\nmaster_replid:" + runID + "\r\nconnected_slaves:0\r\n")
	case "time":
		n.clocks++
		now := time.Now().Add(n.ahead).UnixMicro()
		return array(bulk(strconv.FormatInt(now/1e6, 10)), bulk(strconv.FormatInt(now%1e6, 10)))
	case "cluster":
		n.topology++
		return bulk(n.nodes)
	case "script":
		return bulk("")
	case "pubsub":
		return "*0\r\n"
	case "role":
		return array(bulk("master"), ":0\r\n", "*0\r\n")
	case "subscribe", "ssubscribe", "unsubscribe", "sunsubscribe":
		if verb == "subscribe" {
			n.greeted++
		}
		text := ""
		for _, channel := range words[1:] {
			text += ">3\r\n" + bulk(verb) + bulk(channel) + ":1\r\n"
		}
		return text
	case "eval", "evalsha":
		return n.run(words, isAsking)
	case "client":
		if len(words) > 1 && strings.EqualFold(words[1], "kill") {
			return ":1\r\n"
		}
		return "+OK\r\n"
	case "asking", "auth":
		return "+OK\r\n"
	}
	if n.onOther != nil {
		return n.onOther(words)
	}
	return ":0\r\n"
}

// run executes a script, with the mutex locked.
func (n *fakeNode) run(words []string, isAsking bool) string {
	keys, _ := strconv.Atoi(words[2])
	if keys == 0 {
		return ":0\r\n"
	}
	run := nodeRun{keys: words[3 : 3+keys], args: words[3+keys:], isAsking: isAsking}
	for _, s := range slices.Concat(wire.Scripts, []*wire.Script{lookup.Who, lookup.DropOrphaned}) {
		if words[1] == s.SHA || words[1] == s.Text {
			run.script = s
		}
	}
	took := func() {
		n.token = max(n.token+1, time.Now().UnixMicro())
		run.statuses = append(run.statuses, fmt.Sprintf(":%d\r\n", n.token))
	}
	switch run.script {
	case wire.AcquireRelease:
		counts := run.args[1]
		taken, dropped := int(counts[0])+int(counts[1]), int(counts[2])
		locks := (keys + dropped) / 2
		if counts[4] == 1 {
			locks = keys / 4
		}
		run.locks = run.keys[:locks]
		for i := range locks {
			if i >= taken {
				run.statuses = append(run.statuses, ":0\r\n")
			}
			if i < taken || i >= taken+dropped {
				took()
			}
		}
	case wire.Renew:
		run.locks = run.keys
		for range run.locks {
			run.statuses = append(run.statuses, ":0\r\n")
		}
	case lookup.Who, lookup.DropOrphaned:
		run.locks = run.keys[:1]
	default:
		return "-NOSCRIPT No matching script\r\n"
	}
	isProbe := len(run.locks) == 1 && wire.IsProbeLock(run.locks[0])
	if !isProbe {
		n.runs = append(n.runs, run)
	}
	if n.onRun != nil {
		if answer := n.onRun(&run); answer != "" {
			return answer
		}
	}
	if run.script == wire.Renew {
		return fmt.Sprintf(":%d\r\n", len(run.locks))
	}
	if run.script == wire.AcquireRelease && len(run.statuses) == 1 {
		return run.statuses[0]
	}
	return array(run.statuses...)
}

// fakeCluster has the slots divided evenly among its nodes.
type fakeCluster []*fakeNode

func startFakeCluster(t testing.TB, masters int) fakeCluster {
	t.Helper()
	var c fakeCluster
	for i := range masters {
		c = append(c, startFakeNode(t, i+1))
	}
	c.know(c.topology(1, nil))
	return c
}

// topology returns an answer to CLUSTER NODES, in which slots have been given to other nodes; -1: to none.
func (c fakeCluster) topology(epoch int, given map[uint16]int) string {
	slots := make([][]string, len(c))
	last := -1 // the owner of the slot before
	for slot := range redisop.Slots {
		owner := slot * len(c) / redisop.Slots
		if to, ok := given[uint16(slot)]; ok {
			owner = to
		}
		if owner < 0 {
			last = -1
			continue
		}
		if owner == last {
			first, _, _ := strings.Cut(slots[owner][len(slots[owner])-1], "-")
			slots[owner][len(slots[owner])-1] = first + "-" + strconv.Itoa(slot)
		} else {
			slots[owner] = append(slots[owner], strconv.Itoa(slot))
		}
		last = owner
	}
	text := ""
	for i, n := range c {
		text += nodeLine(n.address+"@1", "master", epoch, slots[i]...)
	}
	return text
}

// know has all nodes answer that.
func (c fakeCluster) know(topology string) {
	for _, n := range c {
		n.set(func() { n.nodes = topology })
	}
}

func (c fakeCluster) url() string {
	var nodes []string
	for _, n := range c {
		nodes = append(nodes, n.address)
	}
	return "redis+cluster://" + strings.Join(nodes, ",")
}

// names returns names of locks that a node has, in slots of their own.
func (c fakeCluster) names(node, count int) (names []string) {
	for i := 0; len(names) < count; i++ {
		name := fmt.Sprintf("lock%d", i)
		if int(wire.SlotOf(name))*len(c)/redisop.Slots == node {
			names = append(names, name)
		}
	}
	return names
}

// clusterRecorder is what the table would be, of a Cluster.
type clusterRecorder struct {
	*recorder

	mu      sync.Mutex // guards what follows
	owners  [redisop.Slots]redisop.Shard
	isUp    map[redisop.Shard]bool
	downs   map[redisop.Shard]string
	lines   []string // "route SHARD" and "result NAME OUTCOME", in order
	results map[string][]redisop.Result
}

func openCluster(t testing.TB, url string, change ...func(*Config)) *clusterRecorder {
	t.Helper()
	c := &clusterRecorder{isUp: make(map[redisop.Shard]bool), downs: make(map[redisop.Shard]string), results: make(map[string][]redisop.Result)}
	record := func(cfg *Config) {
		cfg.on(Up, func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.isUp[e.Shard] = true
		})
		cfg.on(Down, func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.isUp[e.Shard], c.downs[e.Shard] = false, e.Text
		})
		cfg.on(Route, func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, r := range e.Routes {
				for slot := int(r.First); slot <= int(r.Last); slot++ {
					c.owners[slot] = r.Shard
				}
				c.lines = append(c.lines, fmt.Sprint("route ", r.Shard))
			}
		})
		cfg.on(Results, func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, r := range e.Results {
				c.results[r.Name] = append(c.results[r.Name], r)
				c.lines = append(c.lines, fmt.Sprint("result ", r.Name, " ", r.Outcome))
			}
		})
	}
	c.recorder = open(t, url, append([]func(*Config){record}, change...)...)
	return c
}

// await waits until a condition holds, which is looked at under the mutex.
func (c *clusterRecorder) await(what string, holds func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		ok := holds()
		lines, downs := slices.Clone(c.lines), fmt.Sprint(c.downs)
		c.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("no %s within %v: %v; down: %s", what, patience, lines, downs)
		}
	}
}

// settled waits until each slot has a shard that is up.
func (c *clusterRecorder) settled() *clusterRecorder {
	c.t.Helper()
	c.await("connection to each master", func() bool {
		return !slices.ContainsFunc(c.owners[:], func(n redisop.Shard) bool { return n == 0 || !c.isUp[n] })
	})
	return c
}

// shardOf is the shard that has a lock.
func (c *clusterRecorder) shardOf(name string) redisop.Shard {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owners[wire.SlotOf(name)]
}

// do sends operations to the shards of their locks, and returns the results in their order. No two are
// of one name and kind.
func (c *clusterRecorder) do(ops ...redisop.Op) []redisop.Result {
	c.t.Helper()
	before := make(map[string]int)
	want := make(map[string]int)
	for i := range ops {
		ops[i].Shard = c.shardOf(ops[i].Name)
		c.mu.Lock()
		before[ops[i].Name] = len(c.results[ops[i].Name])
		c.mu.Unlock()
		want[ops[i].Name]++
	}
	all := slices.Clone(ops)
	c.Do(ops)
	c.await("results", func() bool {
		for name, n := range want {
			if len(c.results[name]) < before[name]+n {
				return false
			}
		}
		return true
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	var results []redisop.Result
	for _, op := range all {
		got := c.results[op.Name][before[op.Name]:]
		if len(got) != want[op.Name] {
			c.t.Errorf("%d results of %q: %+v", len(got), op.Name, got)
		}
		i := slices.IndexFunc(got, func(r redisop.Result) bool { return r.Kind == op.Kind })
		if i < 0 {
			c.t.Fatalf("no result of %+v in %+v", op, got)
		}
		results = append(results, got[i])
	}
	return results
}

func (c *clusterRecorder) events() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}

// nodeLine is a line of CLUSTER NODES.
func nodeLine(address, flags string, epoch int, slots ...string) string {
	line := fmt.Sprintf("07c37dfeb235213a872192d90877d0cd55635b91 %s %s - 0 1426238317239 %d connected", address, flags, epoch)
	return strings.Join(append([]string{line}, slots...), " ") + "\n"
}

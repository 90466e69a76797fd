package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A use is what a command of a script does with keys.
type use struct {
	all    bool // all arguments are keys; otherwise the first one
	writes bool
	sends  bool // the key is a sharded channel
}

// uses are the commands that scripts execute with keys.
var uses = map[string]use{
	"hget": {}, "hmget": {}, "hgetall": {}, "hlen": {}, "hkeys": {}, "hexists": {}, "get": {}, "pttl": {}, "type": {},
	"zrank": {}, "zrange": {}, "zcard": {}, "zscore": {}, "zcount": {},
	"hset": {writes: true}, "hdel": {writes: true}, "hincrby": {writes: true}, "pexpire": {writes: true}, "pexpireat": {writes: true},
	"persist": {writes: true}, "incrby": {writes: true}, "incr": {writes: true}, "set": {writes: true},
	"zadd": {writes: true}, "zrem": {writes: true}, "zpopmin": {writes: true},
	"exists": {all: true}, "del": {all: true, writes: true}, "unlink": {all: true, writes: true},
	"spublish": {sends: true},
}

// keyless are those without. PUBLISH reaches all nodes; what PUBSUB counts is at this one.
var keyless = []string{"time", "publish", "pubsub", "echo", "ping"}

// A watcher checks the scripts that one node executes.
type watcher struct {
	t  testing.TB
	at string

	mu      sync.Mutex // guards what follows
	run     string     // the script that is executed, for messages; "": none yet
	keys    []string   // that it has declared
	runs    int
	seen    map[string]int // by inner command, and by the first word of a message
	mistake map[string]int // what is wrong
}

func startWatcher(t testing.TB, n *harness.ClusterNode) *watcher {
	t.Helper()
	w := &watcher{t: t, at: n.Address(), seen: map[string]int{}, mistake: map[string]int{}}
	harness.Monitor(t, n.Redis, w.onCommand)
	return w
}

func (w *watcher) onCommand(c harness.MonitoredCommand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	command := strings.ToLower(c.Words[0])
	switch {
	case c.From == "lua":
		w.onInner(command, c.Words[1:])
	case command == "eval" || command == "evalsha":
		w.onRun(c.Words)
	}
}

// onRun checks a script: its keys have one slot.
func (w *watcher) onRun(words []string) {
	n, err := strconv.Atoi(words[2])
	if err != nil {
		w.t.Errorf("%q", words)
		return
	}
	w.runs++
	w.run, w.keys = fmt.Sprintf("%.60q", words[:3+n]), words[3:3+n]
	for _, key := range w.keys {
		if harness.Slot(key) != harness.Slot(w.keys[0]) {
			w.mistake[fmt.Sprintf("a script has keys of two slots: %s", w.run)]++
		}
	}
}

// onInner checks a command of the script that is executed.
func (w *watcher) onInner(command string, args []string) {
	w.seen[command]++
	if (command == "publish" || command == "spublish") && len(args) == 2 {
		word, _, _ := strings.Cut(args[1], " ")
		word, _, _ = strings.Cut(word, ":")
		w.seen["message "+word]++
	}
	if slices.Contains(keyless, command) {
		return
	}
	does, known := uses[command]
	if !known {
		w.mistake[fmt.Sprintf("this test does not know the keys of the inner command %s", command)]++
		return
	}
	keys := args
	if !does.all {
		keys = args[:1]
	}
	for _, key := range keys {
		if len(w.keys) == 0 || harness.Slot(key) != harness.Slot(w.keys[0]) {
			w.mistake[fmt.Sprintf("%s has a key of another slot than its script: %q in %s", command, args, w.run)]++
		}
		if does.writes && !slices.Contains(w.keys, key) {
			w.mistake[fmt.Sprintf("%s writes a key that its script does not declare: %q in %s", command, key, w.run)]++
		}
	}
}

// has reports whether scripts have executed all of these, or sent such messages.
func (w *watcher) has(what ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(what, func(one string) bool { return w.seen[one] == 0 })
}

// logSeen logs what scripts have executed, if the test has failed.
func (w *watcher) logSeen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t.Failed() {
		w.t.Logf("%s: scripts executed %v", w.at, w.seen)
	}
}

// end returns how many scripts it has seen, and what was wrong with them.
func (w *watcher) end() (runs int, mistakes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, times := range w.mistake {
		mistakes = append(mistakes, fmt.Sprintf("%s, %d times: %s", w.at, times, what))
	}
	return w.runs, mistakes
}

// The danger: a script that uses a key of another slot fails as soon as that is at another master, or
// makes the key where its slot is not; a key that it does not declare is made at the source of a slot
// that migrates, and is lost when the slot is closed.
//
// Shows docs/topologies.md: Every command has keys of one slot.
func TestClusterCommandsHaveOneSlot(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	c := harness.StartCluster(t, 3, 0)
	var watchers []*watcher
	for _, n := range c.Masters() {
		watchers = append(watchers, startWatcher(t, n))
	}
	w := startCrowd(t, lease, startHosts(t, c, lease)...)
	// Locks that share a tag have one slot, and operations of them may share a script.
	tag := "{" + c.Names(1, "tag", 1)[0] + "}"
	release := w.hold(0, slices.Concat(c.Names(0, "kept", 4), []string{tag + ":kept:a", tag + ":kept:b"})...)
	groups := contendEverywhere(c, w, 3, 2)
	tagged := w.contend(2, tag+":a", tag+":b", tag+":c")
	tagged.await("the locks with a tag are granted")
	for _, one := range watchers {
		// A queue, its end, an acquire, a renewal, a release and its message, and what sidecars send each other.
		wanted := []string{"zadd", "zrem", "hset", "pexpire", "hdel", "message transfer", "message recall"}
		defer one.logSeen()
		harness.Eventually(t, fmt.Sprintf("%s executes %q", one.at, wanted), func() bool { return one.has(wanted...) })
	}
	time.Sleep(lease) // each hold is renewed meanwhile
	for _, g := range groups {
		g.await("the locks are granted")
	}
	release()
	w.end()
	for _, one := range watchers {
		runs, mistakes := one.end()
		t.Logf("%s executed %d scripts", one.at, runs)
		if runs == 0 {
			t.Errorf("%s executed no script", one.at)
		}
		for _, m := range mistakes {
			t.Error(m)
		}
	}
}

// What the test above looks for is found.
func TestClusterCommandsOfTwoSlotsAreSeen(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 1, 0)
	w := startWatcher(t, c.Nodes[0])
	for _, script := range []string{
		"return redis.call('HLEN', '{b}')",
		"return redis.call('SET', '{a}:undeclared', 1)",
		"return redis.call('DEL', KEYS[1])",
	} {
		if err := c.Nodes[0].Eval(t.Context(), script, []string{"{a}:lock"}).Err(); err != nil {
			t.Logf("%s: %v", script, err)
		}
	}
	harness.Eventually(t, "MONITOR reports the scripts", func() bool { return w.has("hlen", "set", "del") })
	runs, mistakes := w.end()
	if runs != 3 || len(mistakes) != 2 {
		t.Errorf("%d scripts, and these mistakes: %q", runs, mistakes)
	}
}

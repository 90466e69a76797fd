package store

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// replicated is a setting: so many replicas confirm what is done.
func replicated(n int) func(*Config) { return func(c *Config) { c.Replicas = n } }

// startPair starts a master and its replica.
func startPair(t testing.TB) (master, replica *server) {
	t.Helper()
	master = startRedis(t, "--repl-diskless-sync-delay", "0")
	replica = startRedis(t, "--repl-diskless-sync-delay", "0")
	replica.follow(master)
	// A replica counts when it has confirmed something, up to a second after it has the data.
	a := master.admin()
	a.Incr(ctx, "started")
	defer a.Del(ctx, "started")
	if n := must(a.Wait(ctx, 1, patience).Result()); n != 1 {
		t.Fatal("the replica confirms nothing")
	}
	return master, replica
}

// A slowServer answers scripts at once, and each WAIT when the test says what.
type slowServer struct {
	url     string
	waits   chan []string // arguments of each WAIT that is received
	answers chan string

	mu      sync.Mutex
	words   []string // of the commands after the greeting
	scripts []string // what the next runs are answered with; then ":17…"
}

func startSlow(t *testing.T) *slowServer {
	l := listen(t)
	s := &slowServer{url: "redis://" + l.Addr().String(), waits: make(chan []string, 10), answers: make(chan string, 10)}
	greeted := 0
	speak(t, l, func(args []string) string {
		word := strings.ToLower(args[0])
		if word == "wait" && args[1] != "0" {
			s.note(word)
			s.waits <- args[1:]
			return <-s.answers
		}
		if word == "wait" {
			return ":0\r\n"
		}
		if word == "evalsha" && args[1] == wire.Renew.SHA && greeted == 0 {
			greeted++
			return greeting(args)
		}
		if word == "evalsha" || word == "script" && greeted > 0 {
			return s.note(word)
		}
		return greeting(args)
	})
	t.Cleanup(func() { close(s.answers) })
	return s
}

// note notes a command, and returns what it is answered with.
func (s *slowServer) note(word string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words = append(s.words, word)
	if word == "script" {
		return bulk("sha")
	}
	if len(s.scripts) > 0 {
		answer := s.scripts[0]
		s.scripts = s.scripts[1:]
		return answer
	}
	return ":1700000000000000\r\n"
}

func (s *slowServer) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.words)
}

// isQuiet reports whether nothing is delivered for a while.
func (r *recorder) isQuiet() bool {
	select {
	case got := <-r.results:
		r.t.Errorf("delivered: %+v", got)
	case got := <-r.messages:
		r.t.Errorf("delivered: a message for %s", got)
	case got := <-r.subscribed:
		r.t.Errorf("delivered: the subscription of %s", got)
	case <-time.After(50 * time.Millisecond):
		return true
	}
	return false
}

// The danger: a client has a lock that no replica has, and a failover gives it to a second one.
func TestResultsAreWithheldUntilReplicasConfirm(t *testing.T) {
	s := startSlow(t)
	var mu sync.Mutex
	var order []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, fmt.Sprintf(format, args...))
	}
	s.scripts = []string{
		// A message comes between two results of one batch, and after them.
		":1700000000000000\r\n" + ">3\r\n" + bulk("message") + bulk(channelOf("watched")) + bulk("0"),
		":1700000000000000\r\n" + ">3\r\n" + bulk("message") + bulk(channelOf("watched")) + bulk("0"),
	}
	r := connected(t, s.url, replicated(1), func(c *Config) {
		others := c.OnEvent
		c.on(Results, func(e Event) {
			for _, res := range e.Results {
				note("%s %v", res.Name, res.Outcome)
			}
			others(e)
		})
		c.on(Messages, func(e Event) {
			note("%d message", len(e.Messages))
			others(e)
		})
	})
	r.Subscribe(0, "watched")
	recv(t, r.subscribed, "subscription")
	short := takeOp("b", 1)
	short.LeaseMS = 2000
	r.Do([]redisop.Op{takeOp("a", 1), short}) // two leases are two scripts
	if got, want := recv(t, s.waits, "WAIT"), []string{"1", "200"}; !slices.Equal(got, want) {
		t.Errorf("WAIT %v, want %v: a tenth of the shorter lease", got, want)
	}
	r.isQuiet()
	r.Do([]redisop.Op{takeOp("c", 1)})
	r.isQuiet()
	s.answers <- ":1\r\n"
	for range 2 {
		recv(t, r.messages, "message")
	}
	if got, want := recv(t, s.waits, "WAIT of the next batch"), []string{"1", "400"}; !slices.Equal(got, want) {
		t.Errorf("WAIT %v, want %v", got, want)
	}
	mu.Lock()
	if want := []string{"b done", "1 message", "a done", "1 message"}; !slices.Equal(order, want) {
		t.Errorf("delivered %v, want %v", order, want)
	}
	mu.Unlock()
	s.answers <- ":1\r\n"
	for n := 0; n < 3; {
		n += len(recv(t, r.results, "result"))
	}
	if got, want := s.received(), []string{"evalsha", "evalsha", "wait", "evalsha", "wait"}; !slices.Equal(got, want) {
		t.Errorf("Redis received %v, want %v", got, want)
	}
}

func TestEachReplicaThatIsAskedForMustConfirm(t *testing.T) {
	s := startSlow(t)
	r := connected(t, s.url, replicated(2))
	for confirmed, want := range []redisop.Outcome{redisop.NotSynced, redisop.NotSynced, redisop.Done} {
		r.Do([]redisop.Op{takeOp("a", 1)})
		if got := recv(t, s.waits, "WAIT"); got[0] != "2" {
			t.Errorf("WAIT %v", got)
		}
		s.answers <- fmt.Sprintf(":%d\r\n", confirmed)
		if got := recv(t, r.results, "result"); len(got) != 1 || got[0].Outcome != want {
			t.Errorf("%d of 2 replicas: %+v", confirmed, got)
		}
	}
}

// A script that is sent again is executed after the WAIT of its batch.
func TestScriptThatIsSentAgainHasAWaitOfItsOwn(t *testing.T) {
	s := startSlow(t)
	s.scripts = []string{"-NOSCRIPT No matching script\r\n"}
	r := connected(t, s.url, replicated(1))
	r.Do([]redisop.Op{takeOp("a", 1)})
	recv(t, s.waits, "WAIT")
	s.answers <- ":1\r\n"
	recv(t, s.waits, "second WAIT")
	r.isQuiet()
	s.answers <- ":0\r\n"
	if got := recv(t, r.results, "result"); len(got) != 1 || got[0].Outcome != redisop.NotSynced {
		t.Errorf("%+v", got)
	}
	if got, want := s.received(), []string{"evalsha", "wait", "script", "evalsha", "wait"}; !slices.Equal(got, want) {
		t.Errorf("Redis received %v, want %v", got, want)
	}
}

// The danger: an outcome that is withheld is delivered after the connection, and with it the master,
// has changed.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestWithheldResultsAreUnknownWhenTheConnectionEnds(t *testing.T) {
	s := startSlow(t)
	r := connected(t, s.url, replicated(1))
	held := takeOp("held", 1)
	s.scripts = []string{"*5\r\n:" + fmt.Sprint(int(wire.CodeHeld)) + "\r\n:20000\r\n" + bulk(field(otherUUID, 1)) + ":0\r\n:0\r\n"}
	held.LeaseMS = 2000
	r.Do([]redisop.Op{held, takeOp("taken", 1)})
	recv(t, s.waits, "WAIT")
	for end := time.Now().Add(patience); ; { // both results are read
		left := 0
		r.single.link.With(func(m *pipeline.Machine) { left = m.InFlight() })
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the results do not come")
		}
	}
	r.impatient()
	var got []redisop.Result
	for len(got) < 2 {
		got = append(got, recv(t, r.results, "result")...)
	}
	for _, res := range got {
		if res.Outcome != redisop.Unknown || res.Msg == "" || res.Sent == 0 || res.Token != 0 {
			t.Errorf("%+v, want Unknown", res)
		}
	}
	if down := r.down(); !strings.Contains(down, "did not answer within") {
		t.Errorf("down: %s", down)
	}
	r.isQuiet()
}

// Too few replicas confirm: what Redis did is NotSynced, and what it did not do is as it was.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestTooFewReplicasAreNotSynced(t *testing.T) {
	master, replica := startPair(t)
	a := master.admin()
	r := connected(t, master.url(), replicated(1))
	a.HSet(ctx, "others", field(otherUUID, 1), "1")
	if res := r.untilDone(takeOp("mine", 1)); res.Token == 0 {
		t.Fatalf("with a replica: %+v", res)
	}
	replica.suspend()
	short := takeOp("short", 2)
	short.LeaseMS = 1000
	later := dropOp("later", 3)
	later.Flags |= redisop.CanWait
	began := time.Now()
	got := r.ask(renewOp("mine", 1), short, takeOp("others", 4), dropOp("awaited", 5), later, checkOp("mine", 1))
	if took := time.Since(began); took < 100*time.Millisecond || took > patience {
		t.Errorf("it took %v, and a tenth of the shortest lease is 100ms", took)
	}
	want := []redisop.Outcome{redisop.NotSynced, redisop.NotSynced, redisop.HeldByOther, redisop.NotSynced, redisop.Done, redisop.Done}
	for i, res := range got {
		if res.Outcome != want[i] {
			t.Errorf("%+v, want %v", res, want[i])
		}
		if res.Outcome == redisop.NotSynced && (!strings.Contains(res.Msg, "0 of 1 replicas of Redis at "+master.socket()) ||
			!strings.Contains(res.Msg, "confirmed the lock within 100ms; check its replicas (role)")) {
			t.Errorf("the sentence is %q", res.Msg)
		}
	}
	r.awaitDegraded("0 of 1 replicas")
	// Another failure is not another report.
	if res := r.one(renewOp("mine", 1)); res.Outcome != redisop.NotSynced {
		t.Errorf("%+v", res)
	}
	replica.signal(syscall.SIGCONT)
	r.untilDone(renewOp("mine", 1))
	r.awaitDegraded()
	if len(r.degraded) > 0 {
		t.Errorf("OnDegraded(%q)", <-r.degraded)
	}
	replica.stop()
	if res := r.one(renewOp("mine", 1)); res.Outcome != redisop.NotSynced {
		t.Errorf("the replica has ended: %+v", res)
	}
}

// No WAIT is sent for what needs none, and none at all without the setting.
func TestWaitIsSentOnlyForWhatReplicasConfirm(t *testing.T) {
	master, _ := startPair(t)
	a := master.admin()
	must(a.ConfigResetStat(ctx).Result())
	waits := func() string { return wire.InfoFields(a.Info(ctx, "commandstats").Val())["cmdstat_wait"] }
	r := connected(t, master.url(), often)
	awaited := dropOp("lock", 1)
	r.ask(takeOp("lock", 1))
	r.ask(renewOp("lock", 1))
	r.ask(checkOp("lock", 1))
	r.ask(awaited)
	awaitProbes(t, master, 2)
	if got := waits(); got != "" {
		t.Errorf("WAIT is called without the setting: %s", got)
	}
	unawaited := dropOp("lock", 2)
	unawaited.Flags |= redisop.CanWait
	d := connected(t, master.url(), replicated(1), func(c *Config) { c.UUID = secondUUID })
	greeted := waits()
	d.ask(checkOp("lock", 2))
	d.ask(redisop.Op{Kind: redisop.Arrive, Name: "lock"})
	d.ask(unawaited)
	if got := waits(); got != greeted || !strings.HasPrefix(got, "calls=1,") {
		t.Errorf("WAIT is called for what nothing waits for: %s, at the greeting %s", got, greeted)
	}
	for i, op := range []redisop.Op{takeOp("lock", 2), renewOp("lock", 2), dropOp("lock", 2)} {
		if res := d.one(op); res.Outcome != redisop.Done {
			t.Errorf("%+v", res)
		}
		if got, want := waits(), fmt.Sprintf("calls=%d,", 2+i); !strings.HasPrefix(got, want) {
			t.Errorf("after %+v: %s, want %s", op, got, want)
		}
	}
}

// A daemon that locks nothing finds that a replica is gone, and that it is back.
func TestProbeFindsThatAReplicaIsGone(t *testing.T) {
	master, replica := startPair(t)
	r := connected(t, master.url(), replicated(1), often)
	awaitProbes(t, master, 2)
	must(replica.admin().ReplicaOf(ctx, "NO", "ONE").Result())
	r.awaitDegraded("0 of 1 replicas")
	// What refuses every acquire is shown first.
	a := master.admin()
	must(a.ConfigSet(ctx, "maxmemory", "1").Result())
	r.awaitDegraded("out of memory")
	must(a.ConfigSet(ctx, "maxmemory", "0").Result())
	r.awaitDegraded("0 of 1 replicas")
	replica.follow(master)
	r.awaitDegraded()
}

// The danger: on a busy host a WAIT is always in flight, and no probe is ever sent.
func TestProbesAreSentBetweenBatches(t *testing.T) {
	master, _ := startPair(t)
	var store *Store
	var ending atomic.Bool
	again := func(results []redisop.Result) {
		if ending.Load() {
			return
		}
		ops := make([]redisop.Op, len(results))
		for i, r := range results {
			ops[i] = takeOp(r.Name, 1)
		}
		store.Do(ops)
	}
	r := connected(t, master.url(), replicated(1), often, func(c *Config) { c.on(Results, func(e Event) { again(e.Results) }) })
	store = r.Store
	for group := range 2 { // one waits while the other is confirmed
		var ops []redisop.Op
		for i := range 16 {
			ops = append(ops, takeOp(fmt.Sprint("lock ", group, " ", i), 1))
		}
		store.Do(ops)
	}
	a := master.admin()
	probes := func() int64 { n, _ := a.Get(ctx, "redisson_lock_token:{"+wire.ProbeLock+"}").Int64(); return n } // each draws a token
	first := probes()
	for end := time.Now().Add(patience); first == 0 || probes() < first+5; {
		if first == 0 {
			first = probes()
		}
		if time.Now().After(end) {
			t.Fatal("no probes")
		}
	}
	ending.Store(true)
}

// A Redis with too few replicas is up, and degraded from the greeting on.
func TestTooFewReplicasAtTheGreeting(t *testing.T) {
	master := startRedis(t, "--repl-diskless-sync-delay", "0")
	r := connected(t, master.url(), replicated(2), often)
	r.awaitDegraded("has 0 connected replicas, and 2 must confirm each lock (durability)")
	if n := strings.Count(r.logged(), "must confirm each lock"); n != 1 {
		t.Errorf("logged %d times: %s", n, r.logged())
	}
	for range 2 {
		startRedis(t, "--repl-diskless-sync-delay", "0").follow(master)
	}
	r.awaitDegraded()
	// Redis counts what was executed before it had any replica as confirmed when replicas have
	// the data, and what comes then when they begin to confirm, up to a second later.
	end := time.Now().Add(patience)
	for r.one(takeOp("lock", 1)).Outcome != redisop.Done {
		if time.Now().After(end) {
			t.Fatal("the replicas confirm nothing")
		}
	}
}

// The permission is named, at the greeting and when it is taken away.
func TestWaitThatIsNotPermittedIsNamed(t *testing.T) {
	master, _ := startPair(t)
	a := master.admin()
	down := open(t, master.userURL("without", leastRules...), replicated(1))
	if why := down.down(); !strings.Contains(why, "let its ACL have +wait") {
		t.Errorf("down: %s", why)
	}
	if res := down.one(takeOp("lock", 1)); res.Outcome != redisop.NotSent || !strings.Contains(res.Msg, "let its ACL have +wait") {
		t.Errorf("%+v", res)
	}
	r := connected(t, master.userURL("with", append(slices.Clone(leastRules), "+wait", "+info")...), replicated(1))
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
	must(a.ACLSetUser(ctx, "with", "-wait").Result())
	if res := r.one(renewOp("lock", 1)); res.Outcome != redisop.NotSynced || !strings.Contains(res.Msg, "let its ACL have +wait") {
		t.Errorf("%+v", res)
	}
	if why := r.down(); !strings.Contains(why, "let its ACL have +wait") {
		t.Errorf("down: %s", why)
	}
	must(a.ACLSetUser(ctx, "with", "+wait").Result())
	r.up()
}

// The script of another host made a transfer: its replicas are not known to have it.
func TestTransferIsNoProofWhileReplicasConfirm(t *testing.T) {
	master, _ := startPair(t)
	a := master.admin()
	from := wire.OriginOf(wire.InfoFields(a.Info(ctx, "server").Val())["run_id"], "master")
	received := make(chan redisop.Message, 1)
	r := connected(t, master.url(), replicated(1), func(c *Config) {
		c.UUID = secondUUID
		c.on(Messages, func(e Event) { received <- e.Messages[0] })
	})
	last := time.Now().UnixMicro()
	a.Publish(ctx, wire.OwnChannel(secondUUID), fmt.Sprintf("transfer:%v 1 %d 32 30000 0 0 lock", from, last))
	if m := recv(t, received, "message"); m.Conn != (redisop.Conn{}) || m.Tokens != 0 || m.Ticket != 1 {
		t.Errorf("%+v", m)
	}
	if res := r.one(takeOp("lock", 1)); res.Conn != redisop.NewConn(1) {
		t.Errorf("%+v", res)
	}
}

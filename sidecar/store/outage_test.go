package store

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// connections of the store, as Redis sees them: all but the test's own.
func connections(t *testing.T, c *redis.Client) (ids []string) {
	t.Helper()
	for line := range strings.Lines(must(c.ClientList(ctx).Result())) {
		if strings.Contains(line, " name=admin ") || strings.Contains(line, " flags=M") || strings.Contains(line, " flags=S") {
			continue
		}
		if !strings.Contains(line, " name=locksidecar ") {
			t.Errorf("a connection without our name: %s", line)
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		ids = append(ids, id)
	}
	return ids
}

func TestOneConnectionAndNoMore(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	var ops []redisop.Op
	for i := range 3000 {
		ops = append(ops, takeOp(fmt.Sprint("lock:", i), 1))
	}
	r.ask(ops...)
	r.Subscribe(0, "lock:1")
	recv(t, r.subscribed, "subscription")
	a.ScriptFlush(ctx)
	r.ask(ops...)
	if n := connections(t, a); len(n) != 1 {
		t.Errorf("%d connections, want 1", len(n))
	}
	a.ClientKillByFilter(ctx, "TYPE", "pubsub")
	r.down()
	recv(t, r.unsubscribed, "end of the subscription")
	r.up()
	recv(t, r.subscribed, "subscription")
	r.ask(ops...)
	if n := connections(t, a); len(n) != 1 {
		t.Errorf("%d connections after it was killed, want 1", len(n))
	}
}

// The connection dies again and again in the midst of the traffic. Every
// operation has one result, and what the result says is what happened: no script
// ran twice.
func TestKilledConnectionsUnderLoad(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	const rounds, width, start = 30, 400, int64(1) << 52
	random := harness.Random(t)
	counts := map[redisop.Outcome]int{}
	for round := range rounds {
		pipe := a.Pipeline()
		ops := make([]redisop.Op, width)
		for i := range ops {
			ops[i] = takeOp(fmt.Sprintf("lock:%d:%d", round, i), 1)
			pipe.Set(ctx, counterOf(ops[i].Name), start, 0)
		}
		must(pipe.Exec(ctx))
		r.one(takeOp("probe", 1)) // it serves: the next one is made soon
		if random.IntN(3) == 0 {
			a.ScriptFlush(ctx)
		}
		// The kill meets the first batch, or one of those after it.
		later := random.IntN(10)
		killed := make(chan error)
		go func() {
			for range later {
				a.Ping(ctx)
			}
			killed <- a.ClientKillByFilter(ctx, "TYPE", "pubsub").Err()
		}()
		for at := 0; at < width; at += 40 {
			r.Do(ops[at : at+40])
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		results := map[string]redisop.Result{}
		for len(results) < width {
			for _, res := range recv(t, r.results, "result") {
				if _, twice := results[res.Name]; twice {
					t.Fatalf("a second result for %s: %+v", res.Name, res)
				}
				results[res.Name] = res
			}
		}
		for name, res := range results {
			counts[res.Outcome]++
			drawn := must(a.Get(ctx, counterOf(name)).Int64()) - start
			switch {
			case res.Outcome == redisop.Done && drawn == 1 && res.Token == uint64(start+1):
			case res.Outcome == redisop.NotSent && drawn == 0:
			case res.Outcome == redisop.Retryable && drawn == 0 && strings.Contains(res.Msg, "NOSCRIPT"): // cut off before it could be taught
			case res.Outcome == redisop.Unknown && (drawn == 0 || drawn == 1):
			default:
				t.Errorf("%+v, but the script ran %d times", res, drawn)
			}
		}
		// Perhaps the kill came after the last answer; then the next operation finds out.
		r.one(takeOp("probe", 1))
		select {
		case why := <-r.downs:
			if !strings.Contains(why, s.socket()) {
				t.Errorf("the reason does not tell where: %v", why)
			}
			if r.up().lost {
				t.Error("the same Redis is said to have lost data")
			}
		default:
			t.Error("the loss of the connection was not reported")
		}
	}
	t.Logf("outcomes: %v", counts)
	if len(r.results) != 0 || len(r.downs) != 0 || len(r.ups) != 0 {
		t.Errorf("left over: %d results, %d downs, %d ups", len(r.results), len(r.downs), len(r.ups))
	}
}

func TestRestartOfRedisIsLossOfData(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	r.Subscribe(0, "lock")
	recv(t, r.subscribed, "subscription")
	first := r.one(takeOp("lock", 1)).Token

	s.stop()
	recv(t, r.unsubscribed, "end of the subscription")
	if res := r.one(renewOp("lock", 1)); res.Outcome != redisop.Unknown && res.Outcome != redisop.NotSent {
		t.Errorf("got %+v", res)
	}
	r.down()
	for range 10 {
		if res := r.one(renewOp("lock", 1)); res.Outcome != redisop.NotSent {
			t.Errorf("got %+v", res)
		}
	}
	s.start()
	if !r.up().lost {
		t.Error("a restarted Redis is said to have kept its data")
	}
	recv(t, r.subscribed, "subscription")
	last := ""
	for len(r.downs) > 0 {
		why := r.down()
		if why == last {
			t.Errorf("OnDown again for the same reason: %v", why)
		}
		last = why
	}
	if res := r.one(renewOp("lock", 1)); res.Outcome != redisop.KeyMissing {
		t.Errorf("got %+v", res)
	}
	if res := r.one(takeOp("lock", 1)); res.Token <= first {
		t.Errorf("token %d after %d", res.Token, first)
	}
}

// After a disconnect each attempt to connect shows more. The last reason is reported, also to
// operations, and a reason that stays is reported once.
func TestLastReasonOfAnOutageIsReported(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	setPassword := func(password string) {
		must(a.ACLSetUser(ctx, "app", "reset", "on", ">"+password, "~*", "&*", "+@all").Result())
	}
	setPassword("first")
	r := connected(t, "redis://app:first@"+s.tcp())
	await := func(want string) {
		t.Helper()
		last := ""
		for !strings.Contains(last, want) {
			why := r.down()
			if why == last {
				t.Errorf("OnDown again for the same reason: %v", why)
			}
			last = why
		}
		if res := r.one(takeOp("lock", 1)); !strings.Contains(res.Msg, want) {
			t.Errorf("a Take returns %q, want %q", res.Msg, want)
		}
	}
	setPassword("second")
	must(a.ClientKillByFilter(ctx, "user", "app").Result())
	await("does not accept the password")
	s.stop()
	await("refuses connections")
	s.start()
	a = s.admin()
	setPassword("first")
	r.up()
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Errorf("got %+v", res)
	}
	s.stop()
	await("refuses connections")
}

// Attempts to connect that fail for the same reason are one report.
func TestReasonThatStaysIsReportedOnce(t *testing.T) {
	attempts := make(chan struct{}, 1000)
	l := listen(t)
	speak(t, l, func([]string) string {
		attempts <- struct{}{}
		return ""
	})
	r := open(t, "redis://"+l.Addr().String())
	for range 4 {
		recv(t, attempts, "attempt to connect")
	}
	if n := len(r.downs); n != 1 {
		t.Errorf("OnDown was called %d times: %q", n, r.down())
	}
}

// A master that is demoted may keep its clients, and send nothing to those that ask for nothing.
func TestDemotedMasterIsLeftWhileNothingIsAsked(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	s.becomeReplica()
	r.ageIdle()
	if why := r.down(); !strings.Contains(why, "has become a read-only replica") || !strings.Contains(why, "an endpoint that fails over") {
		t.Errorf("down: %s", why)
	}
}

// A user that may not ask for the role is asked once, and pings then.
func TestUserWithoutRolePings(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("norole", "~*", "&*", "+@all"))
	must(s.admin().ConfigResetStat(ctx).Result())
	must(s.admin().ACLSetUser(ctx, "norole", "-role").Result())
	for i := range uint64(4) {
		r.ageIdle()
		if res := r.one(takeOp("lock", 1+i)); res.Outcome != redisop.Done { // its result comes after the reply to the ping
			t.Errorf("got %+v", res)
		}
	}
	stats := wire.InfoFields(must(s.admin().Info(ctx, "commandstats").Result()))
	if role, ping := stats["cmdstat_role"], stats["cmdstat_ping"]; !strings.HasPrefix(role, "calls=0,") || !strings.Contains(role, "rejected_calls=1,") || !strings.HasPrefix(ping, "calls=3,") {
		t.Errorf("role: %s; ping: %s", role, ping)
	}
}

// The address leads to a replica after a failover: that is Busy, and a reason to
// look again; when it is a master again, its history is another one.
func TestDemotedMasterIsLeft(t *testing.T) {
	s, other := startRedis(t), startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	r.Subscribe(0, "lock")
	recv(t, r.subscribed, "subscription")
	must(a.ReplicaOf(ctx, "127.0.0.1", other.port).Result())
	res := r.one(takeOp("lock", 1))
	if res.Outcome != redisop.Retryable || !strings.Contains(res.Msg, "read-only replica") {
		t.Errorf("got %+v, want Busy", res)
	}
	if why := r.down(); !strings.Contains(why, "read-only replica") {
		t.Errorf("down: %s", why)
	}
	must(a.ReplicaOf(ctx, "no", "one").Result())
	if !r.up().lost {
		t.Error("another history is said to be the same data")
	}
	recv(t, r.unsubscribed, "end of the subscription: it may have led elsewhere")
	recv(t, r.subscribed, "subscription")
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Errorf("got %+v", res)
	}
}

// Redis stands still with our commands in its buffers. We give up in time, and
// when it goes on, nothing of the old connection runs any more once we are back.
func TestStalledRedis(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url(), func(c *Config) { c.Timeout = patience })
	before := connections(t, a)
	s.suspend()
	r.Do([]redisop.Op{takeOp("lock", 1)})
	r.impatient()
	res := recv(t, r.results, "result")[0]
	if res.Outcome != redisop.Unknown || !strings.Contains(res.Msg, "did not answer within 30s") { // what the Config says
		t.Errorf("got %+v, want Unknown", res)
	}
	if why := r.down(); !strings.Contains(why, "did not answer within 30s") {
		t.Errorf("down: %s", why)
	}
	s.signal(syscall.SIGCONT)
	if r.up().lost {
		t.Error("the same Redis is said to have lost data")
	}
	if after := connections(t, a); len(after) != 1 || after[0] == before[0] {
		t.Errorf("connections %v, before %v: the old one still lives", after, before)
	}
}

// Nothing to do, and the server is gone without a word: it is noticed all the
// same.
func TestDeadIdleConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := connected(t, s.url(), func(c *Config) { c.Timeout = patience })
	s.suspend()
	r.ageIdle()
	r.impatient()
	r.down()
	s.signal(syscall.SIGCONT)
	r.up()
}

// The end of an idle connection is noticed when it comes, not when the connection
// is used next.
func TestEndOfAnIdleConnectionIsNoticedAtOnce(t *testing.T) {
	s := startRedis(t)
	l := listen(t)
	defer l.Close()
	first := make(chan *net.TCPConn, 1)
	var ended atomic.Bool
	late := make(chan string, 1) // what was said on it after its end
	go func() {
		for n := 0; ; n++ {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server := must(net.Dial("unix", s.socket()))
			go io.Copy(client, server)
			if n > 0 {
				go func() { io.Copy(server, client); server.Close() }()
				continue
			}
			first <- client.(*net.TCPConn)
			go func() {
				defer server.Close()
				buf, said := make([]byte, 4096), ""
				for {
					n, err := client.Read(buf)
					if err != nil {
						late <- said
						return
					}
					if ended.Load() {
						said += string(buf[:n])
					}
					server.Write(buf[:n])
				}
			}()
		}
	}()
	r := connected(t, "redis://"+l.Addr().String())
	ended.Store(true)
	recv(t, first, "connection").CloseWrite()
	r.down()
	r.up()
	if said := recv(t, late, "end of the first connection"); said != "" {
		t.Errorf("said after the end: %q", said)
	}
}

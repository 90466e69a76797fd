package store

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestOpenRefusesWhatIsNoRedisURL(t *testing.T) {
	for _, tt := range []struct{ url, says string }{
		{"", "no Redis URL"},
		{"localhost:6379", "begins with"},
		{"http://localhost", "begins with"},
		{"redis://:se/cret@localhost", "percent-encoded"},
		{"redis://localhost/zero", "database"},
		{"redis://localhost/-1", "database -1"},
		{"redis://localhost?colour=blue", "colour"},
		{"redis://:secret@localhost?colour=blue", "colour"},
		{"unix://", "socket path"},
	} {
		_, err := Open(Config{URL: tt.url, UUID: ourUUID})
		if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), "want redis://") {
			t.Errorf("%q: got %v, want a sentence with %q and the forms of a URL", tt.url, err, tt.says)
		}
		if err != nil && strings.Contains(err.Error(), "cret") {
			t.Errorf("%q: the error tells the password: %v", tt.url, err)
		}
	}
	if _, err := Open(Config{URL: "redis://localhost"}); err == nil {
		t.Error("Open without a UUID")
	}
}

// speak is a server that answers every command with what reply gives for it, in
// RESP. An empty answer closes the connection.
func speak(t *testing.T, l net.Listener, reply func(args []string) string) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					args, err := readCommand(in)
					if err != nil {
						return
					}
					answer := reply(args)
					if answer == "" {
						return
					}
					io.WriteString(conn, answer)
				}
			}()
		}
	}()
}

func readCommand(in *bufio.Reader) ([]string, error) {
	line := func() (string, error) {
		s, err := in.ReadString('\n')
		return strings.TrimSpace(s), err
	}
	head, err := line()
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimPrefix(head, "*"))
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := line()
		if err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(strings.TrimPrefix(size, "$"))
		if err != nil {
			return nil, err
		}
		arg := make([]byte, n+2)
		if _, err := io.ReadFull(in, arg); err != nil {
			return nil, err
		}
		args[i] = string(arg[:n])
	}
	return args, nil
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	return must(net.Listen("tcp", "127.0.0.1:0"))
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// What an operator reads when Redis cannot be used: where, what, and what to do.
// Operations are answered at once meanwhile, with the same sentence.
func TestDownSaysWhatIsWrong(t *testing.T) {
	const secret = "hunter2"
	redisServer := startRedis(t)
	protected := startRedis(t, "--requirepass", secret)
	replica := startRedis(t, "--replicaof", "127.0.0.1", redisServer.port)
	crowded := startRedis(t, "--maxclients", "1")
	unloaded := startRedis(t)                // the others may have left the scripts where they are known
	must(crowded.admin().Ping(ctx).Result()) // the one
	setUser := func(name string, rules ...string) string {
		args := append([]string{"on", ">" + secret, "~*", "&*", "+@all"}, rules...)
		must(redisServer.admin().ACLSetUser(ctx, name, args...).Result())
		return fmt.Sprintf("redis://%s:%s@%s", name, secret, redisServer.tcp())
	}
	fake := func(reply func(args []string) string) string {
		l := listen(t)
		speak(t, l, reply)
		return "redis://" + l.Addr().String()
	}
	info := func(text string) func([]string) string {
		return func(args []string) string {
			switch strings.ToLower(args[0]) {
			case "info":
				return bulk(text)
			case "hello":
				return "-ERR unknown command\r\n"
			case "time":
				return "*2\r\n" + bulk("1700000000") + bulk("0")
			}
			return "+OK\r\n"
		}
	}
	proxy := func(hello3 string) func([]string) string {
		return func(args []string) string {
			if strings.EqualFold(args[0], "hello") && args[1] == "3" {
				return hello3
			}
			return greeting(args)
		}
	}
	busy := func(args []string) string {
		if args[0] == "subscribe" {
			return "-BUSY Redis is busy running a script.\r\n"
		}
		return greeting(args)
	}
	httpsServer := httptest.NewUnstartedServer(nil)
	httpsServer.StartTLS()
	t.Cleanup(httpsServer.Close)

	for _, tt := range []struct {
		name, url string
		says      []string
	}{
		{"nobody listens", "redis://127.0.0.1:" + freePort(t), []string{"refuses connections"}},
		{"no such host", "redis://no-such-host.invalid:6379", []string{"no-such-host.invalid:6379", "cannot be found"}},
		{"no such socket", "unix:///no/such/redis.sock", []string{"/no/such/redis.sock", "no Redis socket"}},
		{"wrong password", "redis://:" + secret + "x@" + protected.tcp(), []string{protected.tcp(), "does not accept the password", "the default user"}},
		{"wrong user", "redis://bob:" + secret + "@" + redisServer.tcp(), []string{"does not accept the password", `user "bob"`}},
		{"no password", "redis://" + protected.tcp(), []string{protected.tcp(), "wants a password"}},
		{"no such database", "redis://" + redisServer.tcp() + "/99", []string{"no database 99"}},
		{"TLS to a plain port", "rediss://" + redisServer.tcp(), []string{"TLS", "write redis://"}},
		{"a certificate that is not trusted", "rediss://" + httpsServer.Listener.Addr().String(), []string{"certificate of Redis at", "redis-ca"}},
		{"plain to a port that hangs up", fake(func([]string) string { return "" }), []string{"closed the connection", "rediss://"}},
		{"no answer", func() string { l := listen(t); t.Cleanup(func() { l.Close() }); return "redis://" + l.Addr().String() }(), []string{"did not answer within 200ms"}},
		{"too old", fake(info("redis_version:6.0.16\r\nrole:master\r\n")), []string{"is 6.0.16; locksidecar needs 6.2 or newer"}},
		{"much too old", fake(info("redis_version:2.8.19\r\nrole:master\r\n")), []string{"is 2.8.19; locksidecar needs 6.2 or newer"}},
		{"loading", fake(info("redis_version:7.0.15\r\nrole:master\r\nloading:1\r\n")), []string{"is loading its data"}},
		{"loading, and says nothing else", fake(func([]string) string { return "-LOADING Redis is loading the dataset in memory\r\n" }), []string{"is loading its data"}},
		{"replica", replica.url(), []string{"read-only replica of 127.0.0.1:" + redisServer.port, "an endpoint that fails over leads to the master soon", "point redis to the master"}},
		{"a Sentinel", fake(info("redis_version:7.0.15\r\nredis_mode:sentinel\r\n")), []string{"is a Sentinel, which has no locks", "write redis+sentinel://"}},
		{"full", "redis://" + crowded.tcp(), []string{"has no connection to spare", "raise its maxclients"}},
		{"protected mode", fake(func([]string) string {
			return "-DENIED Redis is running in protected mode because protected mode is enabled and no password is set for the default user.\r\n"
		}), []string{"is in protected mode", "let it require a password"}},
		{"no EVALSHA", setUser("noevalsha", "-evalsha"), []string{"does not permit this user to run scripts", "+evalsha"}},
		{"no scripts at all", setUser("noscript", "-@scripting"), []string{"does not permit this user to run scripts", "+evalsha"}},
		{"no TIME", setUser("notime", "-time"), []string{"does not permit", "+time"}},
		{"no way to load a script", unloaded.userURL("noload", "~*", "&*", "+@all", "-script", "-eval"), []string{"does not permit this user to load scripts", "+script|load or +eval"}},
		{"no RESP3", fake(proxy("-NOPROTO sorry, this protocol version is not supported\r\n")), []string{"does not speak RESP3 (HELLO 3)", "a proxy in between", "NOPROTO"}},
		{"no HELLO", fake(proxy("-ERR unknown command 'HELLO'\r\n")), []string{"does not speak RESP3 (HELLO 3)", "unknown command"}},
		{"RESP2 in spite of HELLO 3", fake(proxy("*4\r\n" + bulk("proto") + ":2\r\n" + bulk("id") + ":3\r\n")), []string{"does not speak RESP3 (HELLO 3)", "RESP2"}},
		{"busy when the sidecar subscribes", fake(busy), []string{"does not accept the subscription", "BUSY"}},
		{"not Redis", fake(func([]string) string { return "HTTP/1.1 400 Bad Request\r\n" }), []string{"Redis at 127.0.0.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := patience
			if tt.name == "no answer" || tt.name == "TLS to a plain port" {
				timeout = 200 * time.Millisecond // which passes
			}
			r := open(t, tt.url, func(c *Config) { c.Timeout = timeout })
			why := r.down()
			for _, says := range tt.says {
				if !strings.Contains(why, says) {
					t.Errorf("got %q, want %q in it", why, says)
				}
			}
			if !strings.Contains(why, "Redis") || strings.Contains(why, secret) {
				t.Errorf("got %q, want a sentence about Redis without the password", why)
			}
			if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.NotSent || res.Msg == "" {
				t.Errorf("got %+v, want NotSent and the reason", res)
			}
			if strings.Contains(r.logged(), secret) {
				t.Errorf("the log tells the password: %s", r.logged())
			}
		})
	}
}

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
			t.Error("nobody said that the connection was lost")
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
	r := connected(t, s.userURL("norole", "~*", "&*", "+@all", "-role"))
	for i := range uint64(3) {
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

func TestBusyAndRefused(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	r.one(takeOp("held", 1))

	t.Run("out of memory is Busy, and renewals still work", func(t *testing.T) {
		a.ConfigSet(ctx, "maxmemory", "1")
		defer a.ConfigSet(ctx, "maxmemory", "0")
		got := r.ask(takeOp("free", 1), renewOp("held", 1), dropOp("nothing", 1))
		if got[0].Outcome != redisop.Retryable || !strings.Contains(got[0].Msg, "out of memory") {
			t.Errorf("take: %+v", got[0])
		}
		if got[1].Outcome != redisop.Done || got[2].Outcome != redisop.Done {
			t.Errorf("keep: %+v, drop: %+v", got[1], got[2])
		}
		// Nor do other changes of a lock that is held: entered again, passed on.
		twice := renewOp("held", 1)
		twice.Count = 2
		if res := r.one(twice); res.Outcome != redisop.Done || a.HGet(ctx, "held", field(ourUUID, 1)).Val() != "2" {
			t.Errorf("entered again: %+v", res)
		}
		next := takeOp("held", 2)
		next.Flags, next.Reserve = next.Flags|redisop.RequireExisting, 64
		if res := r.one(next); res.Outcome != redisop.Done || res.Token == 0 || !a.HExists(ctx, "held", field(ourUUID, 2)).Val() {
			t.Errorf("passed on: %+v", res)
		}
		if res := r.one(renewOp("held", 3)); res.Outcome != redisop.Done || !a.HExists(ctx, "held", field(ourUUID, 3)).Val() {
			t.Errorf("passed on and renewed: %+v", res)
		}
		if n := a.HLen(ctx, "held").Val(); n != 1 {
			t.Errorf("the lock has %d fields", n)
		}
	})
	t.Run("too few replicas is Busy", func(t *testing.T) {
		a.ConfigSet(ctx, "min-replicas-to-write", "1")
		defer a.ConfigSet(ctx, "min-replicas-to-write", "0")
		for _, res := range r.ask(takeOp("free", 1), renewOp("held", 3), dropOp("held", 3)) {
			if res.Outcome != redisop.Retryable || !strings.Contains(res.Msg, "too few replicas") {
				t.Errorf("got %+v", res)
			}
		}
	})
	t.Run("a lock that was refused was not changed", func(t *testing.T) {
		if a.Exists(ctx, "free").Val() != 0 || !a.HExists(ctx, "held", field(ourUUID, 3)).Val() {
			t.Error("it was")
		}
	})
	if len(r.downs) != 0 {
		t.Errorf("down: %v", <-r.downs)
	}
}

func TestOutcomes(t *testing.T) {
	for text, want := range map[string]redisop.Outcome{
		"LOADING Redis is loading the dataset in memory":                    redisop.Retryable,
		"READONLY You can't write against a read only replica.":             redisop.Retryable,
		"OOM command not allowed when used memory > 'maxmemory'.":           redisop.Retryable,
		"BUSY Redis is busy running a script.":                              redisop.Retryable,
		"MISCONF Redis is configured to save RDB snapshots":                 redisop.Retryable,
		"CLUSTERDOWN The cluster is down":                                   redisop.Retryable,
		"MASTERDOWN Link with MASTER is down":                               redisop.Retryable,
		"NOREPLICAS Not enough good replicas to write.":                     redisop.Retryable,
		"TRYAGAIN Multiple keys request during rehashing of slot":           redisop.Retryable,
		"NOSCRIPT No matching script. Please use EVAL.":                     redisop.Retryable,
		"NOAUTH Authentication required.":                                   redisop.Retryable,
		"NOPERM this user has no permissions to access one of the keys":     redisop.Refused,
		"WRONGTYPE Operation against a key holding the wrong kind of value": redisop.Refused,
		"ERR value is not an integer or out of range":                       redisop.Refused,
		"MOVED 866 127.0.0.1:7001":                                          redisop.Refused,
		"CROSSSLOT Keys in request don't hash to the same slot":             redisop.Refused,
		"SOMETHING that is no known error of Redis":                         redisop.Refused,

		// As 6.2 tells what happened inside of a script.
		"@user_script: 64: -OOM command not allowed when used memory > 'maxmemory'.\r\n": redisop.Retryable,
		"@user_script: 64: -READONLY You can't write against a read only replica.":       redisop.Retryable,
		"@user_script: 64: The user executing the script can't run this command":         redisop.Refused,
	} {
		if got := wire.OutcomeOf(wire.Code(text)); got != want {
			t.Errorf("%q: outcome %d, want %d", text, got, want)
		}
	}
}

// userURL makes a user who may do what rules say and nothing else.
func (s *server) userURL(name string, rules ...string) string {
	s.t.Helper()
	args := append([]string{"reset", "resetchannels", "on", ">secret"}, rules...)
	must(s.admin().ACLSetUser(ctx, name, args...).Result())
	return fmt.Sprintf("unix://%s:secret@%s", name, s.socket())
}

// What the documentation tells an operator to permit, and no more.
var leastRules = []string{"~*", "&*", "+evalsha", "+script|load", "+time",
	"+exists", "+hlen", "+hkeys", "+hget", "+hset", "+hdel", "+del", "+pttl", "+pexpire", "+incrby", "+set", "+pubsub", "+publish", "+subscribe", "+unsubscribe", "+ping",
	"+zadd", "+zcard", "+zrank", "+zrange", "+zrem", "+zpopmin"}

// To load scripts that Redis knows is half of what a connection costs it, and ten thousand hosts connect to
// a new master at one moment.
func TestKnownScriptsAreNotLoadedAgain(t *testing.T) {
	s := startRedis(t)
	loads := func() string {
		stats := wire.InfoFields(s.admin().Info(ctx, "commandstats").Val())
		calls, _, _ := strings.Cut(stats["cmdstat_script|load"], ",")
		return calls
	}
	first := connected(t, s.url())
	before := loads()
	second := connected(t, s.url())
	if after := loads(); before != fmt.Sprint("calls=", len(wire.Scripts)) || after != before {
		t.Errorf("scripts are loaded with %q, and by the second connection up to %q", before, after)
	}
	must(s.admin().ScriptFlush(ctx).Result())
	connected(t, s.url())
	if after := loads(); after != fmt.Sprint("calls=", 2*len(wire.Scripts)) {
		t.Errorf("after SCRIPT FLUSH: %q", after)
	}
	for _, r := range []*recorder{first, second} {
		if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
			t.Errorf("%+v", res)
		}
	}
}

// A user who may not load scripts, and whose connection found that Redis knew them.
func TestForgottenScriptsAreRunByTextIfTheyCannotBeLoaded(t *testing.T) {
	s := startRedis(t)
	connected(t, s.url())
	r := connected(t, s.userURL("noload", "~*", "&*", "+@all", "-script|load"))
	for range 2 {
		must(s.admin().ScriptFlush(ctx).Result())
		for _, op := range []redisop.Op{takeOp("a", 1), renewOp("a", 1), dropOp("a", 1)} {
			if res := r.one(op); res.Outcome != redisop.Done {
				t.Errorf("%+v: %+v", op, res)
			}
		}
	}
}

// Shows docs/queue.md: What Redis has.
func TestLeastPermissions(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("least", leastRules...))
	var ops []redisop.Op
	for i := range 10 {
		ops = append(ops, takeOp(fmt.Sprint(i), 1), renewOp(fmt.Sprint(i), 1), dropOp(fmt.Sprint(i), 1))
	}
	for _, op := range ops {
		if res := r.one(op); res.Outcome != redisop.Done {
			t.Errorf("%+v: %+v", op, res)
		}
	}
	r.Subscribe(0, "a")
	recv(t, r.subscribed, "subscription")
	// Without INFO nobody can tell whether it is the same data.
	s.admin().ClientKillByFilter(ctx, "TYPE", "pubsub")
	r.one(takeOp("a", 1))
	if !r.up().lost {
		t.Error("data that cannot be known to be the same is said to be")
	}
	if log := r.logged(); !strings.Contains(log, "INFO is not permitted") {
		t.Errorf("the log is silent about it: %s", log)
	}
}

func TestPermissions(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	t.Run("a key that is denied is Refused, and its batch mates are not", func(t *testing.T) {
		r := connected(t, s.userURL("keys", "~ok:*", "~redisson_lock_token:{ok:*", "&*", "+@all"))
		var ops []redisop.Op
		for i := range 300 {
			name := fmt.Sprint("ok:", i)
			if i%100 == 50 {
				name = fmt.Sprint("no:", i)
			}
			a.HSet(ctx, name, field(ourUUID, 1), "1")
			ops = append(ops, renewOp(name, 1))
		}
		ops = append(ops, takeOp("ok:x", 1), takeOp("no:x", 1), dropOp("no:y", 1))
		for i, res := range r.ask(ops...) {
			if strings.HasPrefix(ops[i].Name, "ok:") {
				if res.Outcome != redisop.Done {
					t.Errorf("%+v", res)
				}
			} else if res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "ACL") {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("without PUBSUB the number of listeners is not known", func(t *testing.T) {
		r := connected(t, s.userURL("nonumsub", "~*", "&*", "+@all", "-pubsub"))
		op := takeOp("a", 1)
		op.Flags |= redisop.CountListeners
		if res := r.one(op); res.Outcome != redisop.Done || res.Listeners != (redisop.Listeners{State: redisop.Uncountable}) {
			t.Errorf("%+v", res)
		}
		if res := r.one(dropOp("a", 1)); res.Outcome != redisop.Done || res.Listeners != redisop.CountedListeners(0) {
			t.Errorf("it reaches no subscriber: %+v", res)
		}
		r.Subscribe(0, "a")
		recv(t, r.subscribed, "subscription")
		if res := r.one(dropOp("a", 1)); res.Outcome != redisop.Done || res.Listeners != (redisop.Listeners{State: redisop.Uncountable}) {
			t.Errorf("it reaches a subscriber: %+v", res)
		}
	})
	t.Run("without PUBLISH a lock is still released, and the log tells once", func(t *testing.T) {
		r := connected(t, s.userURL("nopublish", "~*", "+@all"))
		for i := range 3 {
			name := fmt.Sprint("quiet:", i)
			r.one(takeOp(name, 1))
			if res := r.one(dropOp(name, 1)); res.Outcome != redisop.Done || a.Exists(ctx, name).Val() != 0 {
				t.Errorf("%+v", res)
			}
		}
		if n := strings.Count(r.logged(), "may not publish"); n != 1 {
			t.Errorf("said %d times: %s", n, r.logged())
		}
	})
	t.Run("without PEXPIRE no lock stays for ever", func(t *testing.T) {
		r := connected(t, s.userURL("nopexpire", "~*", "&*", "+@all", "-pexpire"))
		res := r.one(takeOp("forever", 1))
		if res.Outcome != redisop.Refused || a.Exists(ctx, "forever").Val() != 0 {
			t.Errorf("%+v, key exists: %d", res, a.Exists(ctx, "forever").Val())
		}
		if !strings.Contains(res.Msg, `does not permit this user a command that the lock "forever" needs`) {
			t.Errorf("the message does not help: %s", res.Msg)
		}
	})
	t.Run("a command that shows whose lock it is, and is denied, is Refused", func(t *testing.T) {
		theirs := map[string]string{otherUUID + ":1": "1"}
		for _, tt := range []struct {
			denied string
			hash   map[string]string
			ops    []redisop.Op
		}{
			{"hlen", theirs, []redisop.Op{takeOp("a", 1), dropOp("a", 1), renewOp("a", 1)}},
			{"hdel", theirs, []redisop.Op{dropOp("a", 1)}},
			{"hkeys", theirs, []redisop.Op{takeOp("a", 1), dropOp("a", 1), renewOp("a", 1)}},
			{"hget", theirs, []redisop.Op{renewOp("a", 1)}},
		} {
			a.FlushAll(ctx)
			if tt.hash != nil {
				a.HSet(ctx, "a", tt.hash)
			}
			r := connected(t, s.userURL("no"+tt.denied, "~*", "&*", "+@all", "-"+tt.denied))
			for _, op := range tt.ops {
				if res := r.one(op); res.Outcome != redisop.Refused || !strings.Contains(res.Msg, "does not permit this user a command") {
					t.Errorf("without %s: %+v", tt.denied, res)
				}
			}
			if got := a.HGetAll(ctx, "a").Val(); !maps.Equal(got, tt.hash) {
				t.Errorf("without %s: the lock is %v now", tt.denied, got)
			}
		}
	})
	t.Run("without SCRIPT, EVAL teaches", func(t *testing.T) {
		r := connected(t, s.userURL("noload", "~*", "&*", "+@all", "-script"))
		for range 2 {
			a.ScriptFlush(ctx)
			for _, res := range r.ask(takeOp("b", 1), takeOp("c", 1), renewOp("d", 1), dropOp("e", 1), dropOp("f", 1)) {
				if res.Outcome != redisop.Done && res.Kind != redisop.Renew {
					t.Errorf("%+v", res)
				}
			}
		}
	})
	t.Run("a right that is taken away is Refused", func(t *testing.T) {
		r := connected(t, s.userURL("fallen", "~*", "&*", "+@all"))
		must(a.ACLSetUser(ctx, "fallen", "-evalsha").Result())
		if res := r.one(takeOp("b", 1)); res.Outcome != redisop.Refused {
			t.Errorf("%+v", res)
		}
	})
}

func TestTLSUserPasswordAndDatabase(t *testing.T) {
	s := startRedis(t)
	s.userURL("alice", "~*", "&*", "+@all")
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	l := tls.NewListener(listen(t), &tls.Config{Certificates: cert.TLS.Certificates})
	relay(t, l, s.socket())
	defer l.Close()
	r := connected(t, "rediss://alice:secret@"+l.Addr().String()+"/3?skip_verify=true")
	r.Subscribe(0, "lock")
	recv(t, r.subscribed, "subscription")
	op := takeOp("lock", 1)
	op.Flags |= redisop.CountListeners
	if res := r.one(op); res.Outcome != redisop.Done || res.Listeners != redisop.CountedListeners(1) {
		t.Errorf("%+v", res)
	}
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), DB: 3, ClientName: "admin"})
	defer c.Close()
	if c.Exists(ctx, "lock").Val() != 1 {
		t.Error("the lock is not in database 3")
	}
	for line := range strings.Lines(must(c.ClientList(ctx).Result())) {
		if strings.Contains(line, "name=locksidecar") && !strings.Contains(line, "user=alice") {
			t.Errorf("not alice: %s", line)
		}
	}
}

// A late command of a connection that was given up cannot do harm, because the
// connection is ended by its id. Where that is not permitted, the log says so.
func TestEarlierConnectionIsEnded(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	for _, tt := range []struct {
		rules []string
		left  int
	}{{[]string{"~*", "&*", "+@all"}, 1}, {[]string{"~*", "&*", "+@all", "-client", "+client|setname"}, 2}} {
		l := listen(t)
		cut := relay(t, l, s.socket())
		s.userURL("u", tt.rules...)
		r := connected(t, "redis://u:secret@"+l.Addr().String())
		// Our side of the connection ends, Redis's stays: a network that was cut.
		cut <- struct{}{}
		r.one(takeOp("lock", 1))
		r.down()
		r.up()
		if n := connections(t, a); len(n) != tt.left {
			t.Errorf("%v: %d connections, want %d", tt.rules, len(n), tt.left)
		}
		if told := strings.Contains(r.logged(), "may not end the connection before"); told != (tt.left == 2) {
			t.Errorf("%v: log %s", tt.rules, r.logged())
		}
		r.Close(ctx)
		l.Close()
		a.ClientKillByFilter(ctx, "TYPE", "pubsub")
	}
}

// Where a process died the next one goes on: what was left under way is ended
// first, and Redis is known to have kept its data.
func TestSuccessorGoesOn(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	l := listen(t)
	defer l.Close()
	relay(t, l, s.socket())
	before := connected(t, "redis://"+l.Addr().String())
	first := before.one(takeOp("lock", 7)).Token
	before.Close(ctx) // of which Redis does not learn
	if n := len(connections(t, a)); n != 1 {
		t.Fatalf("%d connections", n)
	}

	after := open(t, s.url(), func(c *Config) { c.Last = before.id })
	if up := after.up(); up.lost || up.id.ClientID == before.id.ClientID || up.id.Floor <= before.id.Floor {
		t.Errorf("after %+v: %+v", before.id, up)
	}
	ids := connections(t, a)
	if len(ids) != 1 || ids[0] == fmt.Sprint(before.id.ClientID) {
		t.Errorf("connections %v; that of the predecessor was %d", ids, before.id.ClientID)
	}
	if res := after.one(renewOp("lock", 7)); res.Outcome != redisop.Done {
		t.Errorf("its lock: %+v", res)
	}
	next := takeOp("lock", 8)
	next.Flags |= redisop.RequireExisting
	if res := after.one(next); res.Outcome != redisop.Done || res.Token <= first {
		t.Errorf("its lock, passed on: %+v after token %d", res, first)
	}
}

// A Redis that was started again, or is another one, may have forgotten what the
// process before had in it.
func TestSuccessorFindsAnotherRedis(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	last := connected(t, s.url()).id
	for _, tt := range []struct {
		what   string
		change func(*wire.Identity)
	}{
		{"another run", func(id *wire.Identity) { id.RunID = strings.Repeat("0", 40) }},
		{"another replication history", func(id *wire.Identity) { id.ReplID = strings.Repeat("0", 40) }},
		{"another database", func(id *wire.Identity) { id.ReplID += "1" }},
		{"a Redis that did not say", func(id *wire.Identity) { id.RunID, id.ReplID = "", "" }},
	} {
		id := last
		// Of another run this is a stranger's number.
		stranger := must(a.ClientID(ctx).Result())
		if tt.what == "another run" || tt.what == "a Redis that did not say" {
			id.ClientID = stranger
		}
		tt.change(&id)
		r := open(t, s.url(), func(c *Config) { c.Last = id })
		if !r.up().lost {
			t.Errorf("%s: said to be the same data", tt.what)
		}
		if now, err := a.ClientID(ctx).Result(); err != nil || now != stranger {
			t.Errorf("%s: a stranger's connection was ended (%v)", tt.what, err)
		}
	}
}

// relay passes connections on to a socket. A value on cut ends the client's side
// of all of them and leaves the server's open until the test ends.
func relay(t *testing.T, l net.Listener, socket string) (cut chan struct{}) {
	cut = make(chan struct{})
	conns := make(chan net.Conn)
	go func() {
		var open []net.Conn
		for {
			select {
			case c, ok := <-conns:
				if !ok {
					return
				}
				open = append(open, c)
			case <-cut:
				for _, c := range open {
					c.Close()
				}
				open = nil
			}
		}
	}()
	go func() {
		defer close(conns)
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("unix", socket)
			if err != nil {
				return
			}
			t.Cleanup(func() { back.Close(); client.Close() })
			conns <- client
			go io.Copy(back, client)
			go func() { io.Copy(client, back); client.Close() }()
		}
	}()
	return cut
}

func TestCloseSendsWhatIsQueued(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	var takes, drops []redisop.Op
	for i := range 5000 {
		takes = append(takes, takeOp(fmt.Sprint(i), 1))
		drops = append(drops, dropOp(fmt.Sprint(i), 1))
	}
	r.ask(takes...)
	must(a.ScriptFlush(ctx).Result()) // Redis must be taught meanwhile
	r.Do(drops)
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	n := 0
	for n < len(drops) {
		select {
		case results := <-r.results:
			for _, res := range results {
				if res.Outcome != redisop.Done {
					t.Errorf("%+v", res)
				}
			}
			n += len(results)
		default:
			t.Fatalf("%d results for %d operations", n, len(drops))
		}
	}
	if left := len(must(a.Keys(ctx, "[0-9]*").Result())); left != 0 {
		t.Errorf("%d locks are left", left)
	}
	if len(connections(t, a)) != 0 {
		t.Error("a connection is left")
	}
	r.Do(drops) // into the void, without harm
	if len(r.results) != 0 {
		t.Error("a callback after Close")
	}
}

func TestCloseDoesNotWaitForAStalledRedis(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url(), func(c *Config) { c.Timeout = time.Hour })
	r.Subscribe(0, "lock")
	recv(t, r.subscribed, "subscription")
	s.signal(syscall.SIGSTOP)
	var ops []redisop.Op
	for i := range 2000 {
		ops = append(ops, takeOp(fmt.Sprint(i), 1))
	}
	r.Do(ops)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := r.Close(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	n := 0
	for len(r.results) > 0 {
		for _, res := range <-r.results {
			n++
			if res.Outcome != redisop.Unknown && res.Outcome != redisop.NotSent {
				t.Errorf("%+v", res)
			}
		}
	}
	if n != len(ops) {
		t.Errorf("%d results for %d operations", n, len(ops))
	}
}

func TestCloseWhileRedisIsAway(t *testing.T) {
	r := open(t, "redis://127.0.0.1:"+freePort(t))
	r.Subscribe(0, "lock")
	r.down()
	r.Do([]redisop.Op{dropOp("a", 1)})
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	if res := recv(t, r.results, "result")[0]; res.Outcome != redisop.NotSent {
		t.Errorf("%+v", res)
	}
}

// next returns the next n results, in their order.
func (r *recorder) next(n int) (all []redisop.Result) {
	r.t.Helper()
	for len(all) < n {
		all = append(all, recv(r.t, r.results, "results")...)
	}
	return all
}

// overtakes checks that some operations get their results among the first, which are so many,
// although a crowd was queued before them.
func (r *recorder) overtakes(t *testing.T, first int, crowd []redisop.Op, late ...redisop.Op) {
	t.Helper()
	r.Do(append(crowd, late...))
	all := r.next(len(crowd) + len(late))
	for _, op := range late {
		i := slices.IndexFunc(all, func(res redisop.Result) bool { return res.Name == op.Name })
		if i >= first {
			t.Errorf("of %d results, %d came before that of %q", len(all), i, op.Name)
		}
	}
}

func ofUser(uid int64, op redisop.Op) redisop.Op { op.User = uid; return op }

func thatCanWait(op redisop.Op) redisop.Op { op.Flags |= redisop.CanWait; return op }

func TestRenewalsAreNotStarved(t *testing.T) {
	r := connected(t, startRedis(t).url())
	var takes []redisop.Op
	for i := range 20 * pipeline.DefaultBatches.Others {
		takes = append(takes, takeOp(fmt.Sprint(i), 1))
	}
	r.overtakes(t, pipeline.DefaultBatches.Others, takes, renewOp("held", 1))
}

// Shows docs/guarantees.md: Holds more than Redis can renew.
// Shows docs/renewals.md: Scripts and commands.
func TestRenewalsOfOneUserDoNotDelayThoseOfAnother(t *testing.T) {
	r := connected(t, startRedis(t).url())
	var renewals []redisop.Op
	for i := range 20 * pipeline.DefaultBatches.Renewals {
		op := ofUser(1001, renewOp(fmt.Sprint(i), 1))
		if i%2 == 0 {
			op.Kind, op.LeaseMS = redisop.Check, 0
		}
		renewals = append(renewals, op)
	}
	r.overtakes(t, pipeline.DefaultBatches.Renewals, renewals, ofUser(1002, renewOp("held", 1)))
}

// dropsThatCanWait are those of many locks of one user that end at once.
func dropsThatCanWait() (drops []redisop.Op) {
	for i := range 40 * pipeline.DefaultBatches.Deletes {
		drops = append(drops, thatCanWait(ofUser(1001, dropOp(fmt.Sprint(i), 1))))
	}
	return drops
}

// They are not counted either: otherwise the loop would do no requests meanwhile.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestDropsThatCanWaitDelayNothingElse(t *testing.T) {
	r := connected(t, startRedis(t).url())
	r.overtakes(t, pipeline.DefaultBatches.Deletes+1, dropsThatCanWait(), thatCanWait(ofUser(1002, dropOp("held", 1))), takeOp("another", 1))
	drops := dropsThatCanWait()
	r.Do(drops)
	r.Unsent(func(_ redisop.Shard, n int) { t.Errorf("%d operations count as waiting", n) })
	r.next(len(drops))
}

// A Take never overtakes the Drop of its lock: it would find the lock taken, and strict order would
// be lost. But it does not wait for the Drops of other locks, either.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestTakeTakesTheDropOfItsLockAlong(t *testing.T) {
	for _, inBacklog := range []bool{true, false} {
		r := connected(t, startRedis(t).url())
		r.one(takeOp("held", 1))
		drop, take := thatCanWait(ofUser(1001, dropOp("held", 1))), ofUser(1001, takeOp("held", 2))
		take.Flags |= redisop.AfterPendingDrop
		crowd := dropsThatCanWait()
		ops := append(slices.Clone(crowd), take) // at one time, or how many are sent before would depend on speed
		if inBacklog {
			ops = slices.Insert(ops, len(crowd)/2, drop)
		} else {
			r.Do([]redisop.Op{drop})
		}
		r.Do(ops)
		var kinds []redisop.OpKind
		for i, res := range r.next(len(crowd) + 2) {
			if res.Name != "held" {
				continue
			}
			if kinds = append(kinds, res.Kind); res.Outcome != redisop.Done || i > len(crowd)/4 {
				t.Errorf("%+v came after %d results", res, i)
			}
		}
		if want := []redisop.OpKind{redisop.Drop, redisop.Take}; !slices.Equal(kinds, want) {
			t.Errorf("results of kinds %v, want %v", kinds, want)
		}
	}
}

// After a failover the new master's clock may be behind the old one's. The floor
// of tokens never falls, and goes on with the time, over connections and over
// processes.
func TestFloorNeverFalls(t *testing.T) {
	last := wire.Identity{}
	for i, clock := range []int64{5_000_000_000_000, 4_000_000_000_000, 3_000_000_000_000, 2_000_000_000_000_000} {
		var floors atomic.Int64
		l := listen(t)
		speak(t, l, func(args []string) string {
			switch strings.ToLower(args[0]) {
			case "info":
				return bulk(fmt.Sprintf("redis_version:7.0.15\r\nrole:master\r\nrun_id:%d\r\nmaster_replid:r\r\n", i))
			case "time":
				return "*2\r\n" + bulk(fmt.Sprint(clock/1_000_000)) + bulk(fmt.Sprint(clock%1_000_000))
			case "eval", "evalsha":
				if args[2] == "2" { // keys of one take
					floors.Store(floorOf(args[6]))
					return ":0\r\n"
				}
			}
			return greeting(args)
		})
		r := open(t, "redis://"+l.Addr().String(), func(c *Config) { c.Last = last })
		up := r.up()
		if want := i > 0; up.lost != want {
			t.Errorf("process %d: data lost is %v", i, up.lost)
		}
		since := (up.id.FloorAt - last.FloorAt) / 1000
		since -= since/100 + 1 // see Identity.floor
		if up.id.Floor < clock || i > 0 && up.id.Floor < last.Floor+since {
			t.Errorf("floor %d at time %d, %d µs after %d", up.id.Floor, clock, since, last.Floor)
		}
		r.one(takeOp("lock", 1))
		if got := floors.Load(); got != up.id.Floor {
			t.Errorf("tokens are drawn above %d, the floor is %d", got, up.id.Floor)
		}
		last = up.id
	}
}

// An unexpected reply of a server is not believed.
func TestStrangeRepliesAreUnknown(t *testing.T) {
	take, keep, drop := takeOp("t", 1), renewOp("k", 1), dropOp("d", 1)
	for _, tt := range []struct {
		reply string
		ops   []redisop.Op
	}{
		{"*0\r\n", []redisop.Op{take}},
		{":5\r\n", []redisop.Op{take, drop}},
		{"*1\r\n:5\r\n", []redisop.Op{take}},
		{"*1\r\n:0\r\n", []redisop.Op{drop}},
		{"+OK\r\n", []redisop.Op{take}},
		{"$-1\r\n", []redisop.Op{keep}},
		{"*1\r\n:1\r\n", []redisop.Op{keep, renewOp("k2", 1)}},
		{"*2\r\n:1\r\n:1\r\n", []redisop.Op{take}},
		{"*2\r\n:-1\r\n:1\r\n", []redisop.Op{take}},
		{"$0\r\n\r\n", []redisop.Op{take}},
		{"$0\r\n\r\n", []redisop.Op{drop}},
		{"*2\r\n:1\r\n$1\r\nx\r\n", []redisop.Op{take}},
		{"*3\r\n:1\r\n:1\r\n:1\r\n", []redisop.Op{take}},
		{"*1\r\n:9\r\n", []redisop.Op{keep}},
		{"*1\r\n*1\r\n:1\r\n", []redisop.Op{keep}},
		{"*1\r\n*2\r\n$1\r\nx\r\n:1\r\n", []redisop.Op{keep}},
		{":-4\r\n", []redisop.Op{drop}},
		{"*1\r\n:-1\r\n", []redisop.Op{drop}},
		{"*2\r\n:-3\r\n:4\r\n", []redisop.Op{drop}},
		{"*2\r\n:0\r\n:0\r\n", []redisop.Op{drop}},
		{"*4\r\n:1\r\n:1\r\n:-1\r\n:0\r\n", []redisop.Op{take}},
		{"*6\r\n:1\r\n$1\r\nx\r\n:1\r\n:-1\r\n:7\r\n:0\r\n", []redisop.Op{take}},
		{"*6\r\n:1\r\n$1\r\nx\r\n:1\r\n:0\r\n:0\r\n:0\r\n", []redisop.Op{take}},
		{"*2\r\n:1\r\n$-1\r\n", []redisop.Op{take, drop}},
		{"~1\r\n:5\r\n", []redisop.Op{take}},
		{"%1\r\n:5\r\n:5\r\n", []redisop.Op{take, drop}},
		{"~2\r\n:5\r\n:1\r\n", []redisop.Op{take}},
		{"*1\r\n#t\r\n", []redisop.Op{keep}},
		{"*1\r\n,1\r\n", []redisop.Op{keep}},
	} {
		l := listen(t)
		speak(t, l, func(args []string) string {
			if command := strings.ToLower(args[0]); (command == "eval" || command == "evalsha") && args[2] != "0" {
				return tt.reply
			}
			return greeting(args)
		})
		r := connected(t, "redis://"+l.Addr().String())
		for _, res := range r.ask(tt.ops...) {
			if res.Outcome != redisop.Unknown || !strings.Contains(res.Msg, "cannot be understood") {
				t.Errorf("%q: got %+v", tt.reply, res)
			}
		}
		if why := r.down(); !strings.Contains(why, "cannot be understood") {
			t.Errorf("%q: %s", tt.reply, why)
		}
	}
}

// Without INFO a start says nothing about the data: an operator must not look for a loss.
func TestLogNamesDataLossOnlyIfRedisIdentifiesItself(t *testing.T) {
	s := startRedis(t)
	for _, tt := range []struct{ name, url, runID, want string }{
		{"INFO is not permitted", s.userURL("few", "~*", "&*", "+@all", "-info"), "", "data_lost=unknown"},
		{"another run", s.url(), strings.Repeat("0", 40), "data_lost=possibly"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := open(t, tt.url, func(c *Config) {
				c.Last = wire.Identity{RunID: tt.runID, ReplID: "x/0", Floor: 1, FloorAt: protocol.Now()}
			})
			if up := r.up(); !up.lost {
				t.Error("locks are not asserted again")
			}
			if !strings.Contains(r.logged(), tt.want) {
				t.Errorf("the log does not have %q:\n%s", tt.want, r.logged())
			}
		})
	}
}

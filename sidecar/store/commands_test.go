package store

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func TestOpenRefusesWhatIsNoRedisURL(t *testing.T) {
	for _, tt := range []struct{ url, says string }{
		{"", "no Redis URL"},
		{"localhost:6379", "no redis:// at its beginning"},
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

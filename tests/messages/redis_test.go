package messages

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// checkReported starts a daemon with a Redis that it cannot use, and checks that everything
// that people read contains words: errors of requests, the log, and `locksidecar ping`.
func checkReported(t *testing.T, url string, words ...string) {
	t.Helper()
	d := harness.LaunchDaemon(t, url)
	d.AwaitRedis(strings.ToLower(words[0]))
	c := harness.Dial(t, d)
	_, err := c.TryLock(t.Context(), "x")
	harness.CheckError(t, err, locksidecar.ErrUnavailable, words...)
	w := harness.DialRaw(t, d)
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": "x", "wait_ms": 50}), words...)
	d.Log.AwaitWords(t, words...)
	if r := d.Run("ping"); r.Code == 0 {
		t.Error("`locksidecar ping` reports no error")
	} else {
		harness.CheckContains(t, r.Stderr+r.Stdout, words...)
	}
}

// Shows docs/guarantees.md: Not reachable at the start.
func TestDownRedisIsReported(t *testing.T) {
	t.Parallel()
	port := harness.RefusingPort(t)
	checkReported(t, fmt.Sprintf("redis://127.0.0.1:%d", port), "refuses connections", fmt.Sprint(port))
	checkReported(t, "unix:///nowhere/redis.sock", "no redis socket", "/nowhere/redis.sock")
}

// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
func TestWrongPasswordIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t, "--requirepass", "right")
	host := fmt.Sprintf("127.0.0.1:%d", r.Port)
	checkReported(t, "redis://:wrong@"+host, "password")
	checkReported(t, "redis://"+host, "password")
	d := harness.StartDaemon(t, "redis://:right@"+host)
	if d.Log.Contains("right@") || d.Log.Contains(":right") {
		t.Error("the password is in the log")
	}
}

// The connection ends, and the attempts to connect again fail for another reason. Everything
// that people read shows the last reason.
func TestLastReasonOfAnOutageIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.AddUser("app", ">right", "~*", "&*", "+@all")
	metrics := filepath.Join(harness.ShortDir(t), "metrics.sock")
	d := harness.StartDaemon(t, r.URLOf("app", "right"), "--metrics", metrics)
	c := harness.Dial(t, d)
	check := func(words ...string) {
		t.Helper()
		d.AwaitRedis(strings.ToLower(words[0]))
		_, err := c.TryLock(t.Context(), "x")
		harness.CheckError(t, err, locksidecar.ErrUnavailable, words...)
		w := harness.DialRaw(t, d)
		harness.CheckContains(t, w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": "x", "wait_ms": 50}), words...)
		for _, command := range []string{"ping", "status"} {
			answer := d.Run(command)
			harness.CheckContains(t, answer.Stderr+answer.Stdout, words...)
		}
		for _, path := range []string{"/ready", "/"} {
			harness.CheckContains(t, html.UnescapeString(httpGet(t, metrics, path)), words...)
		}
	}
	r.MustDo("ACL", "SETUSER", "app", "resetpass", ">changed")
	r.MustDo("CLIENT", "KILL", "USER", "app")
	check("does not accept the password", "app")
	r.Stop()
	check("refuses connections")
}

// A Redis that is connected, and refuses acquires, is degraded, in everything that people and
// their programs read.
func TestDegradedRedisIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~*", "&*", "+@all", "-hset")
	metrics := filepath.Join(harness.ShortDir(t), "metrics.sock")
	d := harness.LaunchDaemon(t, r.URLOf("app", "pw"), "--metrics", metrics)
	d.AwaitRedis("does not permit")
	words := []string{"does not permit this user hset"}
	d.Log.AwaitWords(t, append(words, "redis is degraded")...)
	ping := d.Run("ping")
	harness.CheckContains(t, ping.Stderr, append(words, "degraded")...)
	if ping.Code != 74 {
		t.Errorf("`locksidecar ping` ends with status %d, want 74", ping.Code)
	}
	harness.CheckContains(t, d.Run("status").Stdout, append(words, "degraded")...)
	for _, path := range []string{"/ready", "/"} {
		harness.CheckContains(t, html.UnescapeString(httpGet(t, metrics, path)), words...)
	}
	harness.CheckContains(t, httpGet(t, metrics, "/metrics"), "locksidecar_redis_up 1\n", "locksidecar_redis_degraded 1\n")

	r.MustDo("ACL", "SETUSER", "app", "+hset")
	harness.Eventually(t, "Redis is not degraded any more", func() bool { return d.Run("ping").Code == 0 })
	harness.CheckContains(t, httpGet(t, metrics, "/metrics"), "locksidecar_redis_up 1\n", "locksidecar_redis_degraded 0\n")
}

// httpGet returns the body of a page that is served on a Unix socket.
func httpGet(t *testing.T, socket, path string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	answer, err := client.Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
func TestMissingPermissionForScriptsIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~*", "&*", "+@all", "-@scripting")
	checkReported(t, r.URLOf("app", "pw"), "permit", "eval")
}

// Without the permission to subscribe, the daemon grants locks by polling. The log says what
// has to be permitted.
//
// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
func TestMissingPermissionForChannelsIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~*", "resetchannels", "+@all")
	d := harness.StartDaemon(t, r.URLOf("app", "pw"))
	other := harness.StartDaemon(t, r.UnixURL())
	holder, waiter := harness.StartGoWorker(t, other), harness.StartGoWorker(t, d)
	holder.Lock("x")
	granted := waiter.Send(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
	harness.Eventually(t, "the log names what is not permitted", func() bool { return d.Log.Contains("redisson_lock__channel") })
	holder.Unlock("x")
	if a := waiter.Await(granted); a.Err != "" {
		t.Fatalf("the waiter got %+v", a)
	}
	waiter.Unlock("x")
	// Redis executes the release, although it cannot publish the message.
	holder.Lock("x")
}

// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
func TestMissingPermissionForAKeyIsReported(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~app:*", "~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*", "+@all")
	d := harness.StartDaemon(t, r.URLOf("app", "pw"))
	c := harness.Dial(t, d)
	_, err := c.TryLock(t.Context(), "else:1")
	harness.CheckError(t, err, locksidecar.ErrDenied, "permit", "else:1")
	l, err := c.TryLock(t.Context(), "app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestReadOnlyReplicaIsReported(t *testing.T) {
	t.Parallel()
	master := harness.StartRedis(t)
	replica := harness.StartRedis(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port))
	checkReported(t, replica.UnixURL(), "read-only replica", fmt.Sprint(master.Port))
}

// No old Redis can be installed here, so the test starts a server that answers like one.
//
// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
func TestTooOldRedisIsReported(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerLikeRedis3(conn)
		}
	}()
	checkReported(t, "redis://"+l.Addr().String(), "3.0.7", "needs")
}

// answerLikeRedis3 answers INFO, TIME and PING as Redis 3.0 does, and refuses HELLO.
func answerLikeRedis3(conn net.Conn) {
	defer conn.Close()
	for {
		args, err := readCommand(conn)
		if err != nil {
			return
		}
		switch strings.ToUpper(args[0]) {
		case "INFO":
			info := "# Server\r\nredis_version:3.0.7\r\nrun_id:0123456789012345678901234567890123456789\r\n# Replication\r\nrole:master\r\n"
			fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(info), info)
		case "TIME":
			fmt.Fprint(conn, "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n")
		case "PING":
			fmt.Fprint(conn, "+PONG\r\n")
		default:
			fmt.Fprintf(conn, "-ERR unknown command '%s'\r\n", args[0])
		}
	}
}

// readCommand reads one command in the protocol of Redis, without a buffer.
func readCommand(r io.Reader) ([]string, error) {
	line := func() (string, error) {
		var s []byte
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(r, b); err != nil {
				return "", err
			}
			if s = append(s, b[0]); bytes.HasSuffix(s, []byte("\r\n")) {
				return string(s[:len(s)-2]), nil
			}
		}
	}
	number := func(prefix string) (n int, err error) {
		s, err := line()
		if err != nil {
			return 0, err
		}
		_, err = fmt.Sscanf(s, prefix+"%d", &n)
		return n, err
	}
	n, err := number("*")
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number("$")
		if err != nil {
			return nil, err
		}
		arg := make([]byte, size+2)
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		args[i] = string(arg[:size])
	}
	return args, nil
}

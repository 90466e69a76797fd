package embedded

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A resp3Conn is a connection of which the test reads every byte.
type resp3Conn struct {
	t    *testing.T
	conn net.Conn
}

func dialRESP3(t *testing.T, r *Redis, user string) *resp3Conn {
	t.Helper()
	u, err := url.Parse(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	c := &resp3Conn{t, conn}
	if user != "" {
		password, _ := u.User.Password()
		c.send("auth", password)
		c.expect("+OK\r\n")
	}
	c.send("hello", "3")
	hello := make([]byte, 1<<12)
	n, err := conn.Read(hello)
	if err != nil || !strings.HasPrefix(string(hello[:n]), "%7\r\n") || !strings.HasSuffix(string(hello[:n]), "*0\r\n") {
		t.Fatalf("HELLO 3 answers %q, %v", hello[:n], err)
	}
	return c
}

func (c *resp3Conn) send(args ...string) {
	c.t.Helper()
	text := fmt.Sprintf("*%d\r\n", len(args))
	for _, arg := range args {
		text += bulk(arg)
	}
	if _, err := io.WriteString(c.conn, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *resp3Conn) expect(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c.conn, got); string(got) != want {
		c.t.Fatalf("received %q, %v; want %q", got[:n], err, want)
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func push(kind, channel, last string) string { return ">3\r\n" + bulk(kind) + bulk(channel) + last }

func startRESP3(t *testing.T) *Redis {
	t.Helper()
	r, err := Start(t.Context(), slog.New(slog.DiscardHandler), InProcess())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// What locks need of the in-process Redis beyond what miniredis does: a connection that has
// subscribed executes scripts, and receives replies and messages in their order.
func TestSubscribedConnectionExecutesCommands(t *testing.T) {
	r := startRESP3(t)
	c, other := dialRESP3(t, r, "default"), dialRESP3(t, r, "default")
	c.send("subscribe", "a", "b")
	c.expect(push("subscribe", "a", ":1\r\n") + push("subscribe", "b", ":2\r\n"))
	c.send("ping")
	c.expect("+PONG\r\n")
	const publish = `return {redis.call('PUBLISH', KEYS[1], ARGV[1]), redis.call('PUBSUB', 'NUMSUB', KEYS[1])[2], false, 'x'}`
	for i := range 100 {
		text := fmt.Sprint("text ", i)
		c.send("eval", publish, "1", "b", text)
		c.expect(push("message", "b", bulk(text)) + "*4\r\n:1\r\n:1\r\n_\r\n" + bulk("x"))
	}
	other.send("subscribe", "a")
	other.expect(push("subscribe", "a", ":1\r\n"))
	for i := range 100 { // the message is made between two replies
		text := bulk(fmt.Sprint("text ", i))
		c.send("set", "key", "before")
		c.expect("+OK\r\n")
		other.send("eval", `redis.call('SET', 'key', 'after') return redis.call('PUBLISH', 'a', ARGV[1])`, "0", fmt.Sprint("text ", i))
		other.expect(push("message", "a", text) + ":2\r\n")
		c.send("get", "key")
		c.expect(push("message", "a", text) + bulk("after"))
	}
	c.send("unsubscribe", "a", "b")
	c.expect(push("unsubscribe", "a", ":1\r\n") + push("unsubscribe", "b", ":0\r\n"))
	other.send("publish", "b", "text")
	other.expect(":0\r\n")
	c.send("get", "key")
	c.expect(bulk("after"))
}

func TestEndOfAConnectionEndsItsSubscriptions(t *testing.T) {
	r := startRESP3(t)
	c, other := dialRESP3(t, r, "default"), dialRESP3(t, r, "default")
	c.send("subscribe", "a")
	c.expect(push("subscribe", "a", ":1\r\n"))
	c.conn.Close()
	reply := make([]byte, 4)
	for string(reply) != ":0\r\n" {
		other.send("publish", "a", "text")
		if _, err := io.ReadFull(other.conn, reply); err != nil {
			t.Fatal(err)
		}
	}
}

// Every user of the host can connect to the port.
func TestSubscriptionNeedsThePassword(t *testing.T) {
	r := startRESP3(t)
	anonymous := dialRESP3(t, r, "")
	anonymous.send("subscribe", "a")
	anonymous.expect("-NOAUTH Authentication required.\r\n")
	anonymous.send("publish", "a", "text")
	anonymous.expect("-NOAUTH")
}

// The queue of a lock needs these of scripts.
func TestScriptsHaveTheCommandsOfQueues(t *testing.T) {
	r := startRESP3(t)
	c := dialRESP3(t, r, "default")
	c.send("subscribe", "a")
	c.expect(push("subscribe", "a", ":1\r\n"))
	for _, tt := range []struct{ script, want string }{
		{`return redis.call('ZADD', 'q', '1700000000000001', 'x:1', '1700000000000002', 'y:2')`, ":2\r\n"},
		{`return redis.call('ZADD', 'q', '1700000000000003', 'z:3')`, ":1\r\n"},
		{`return {redis.call('ZRANK', 'q', 'y:2'), redis.call('ZRANK', 'q', 'none'), 1}`, "*3\r\n:1\r\n_\r\n:1\r\n"},
		{`return redis.call('ZPOPMIN', 'q')`, "*2\r\n" + bulk("x:1") + bulk("1700000000000001")},
		{`return {redis.call('ZCARD', 'q'), redis.call('ZREM', 'q', 'y:2', 'none'), redis.call('EXISTS', 'q', 'none')}`, "*3\r\n:2\r\n:1\r\n:1\r\n"},
		{`return redis.call('ZRANGE', 'q', 0, 0, 'WITHSCORES')`, "*2\r\n" + bulk("z:3") + bulk("1700000000000003")},
		{`return {redis.call('HSET', 'h', 'f', 'v'), redis.call('PEXPIRE', 'q', '600000'), redis.call('PEXPIRE', 'h', '600000')}`, "*3\r\n:1\r\n:1\r\n:1\r\n"},
		{`return redis.pcall('ZADD', 'h', '1', 'x')`, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		{`return {redis.call('ZPOPMIN', 'none'), redis.call('PUBSUB', 'NUMSUB', 'a', 'b')}`, "*2\r\n*0\r\n*4\r\n" + bulk("a") + ":1\r\n" + bulk("b") + ":0\r\n"},
		{`return #redis.call('TIME')`, ":2\r\n"},
	} {
		c.send("eval", tt.script, "0")
		c.expect(tt.want)
	}
}

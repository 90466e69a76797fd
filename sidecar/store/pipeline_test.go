package store

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// greet is a server that takes part in the greeting of one connection. Then the
// connection is for the caller.
func greet(t *testing.T) (url string, greeted chan net.Conn) {
	t.Helper()
	l := listen(t)
	greeted = make(chan net.Conn, 1)
	go func() {
		defer l.Close()
		conn, err := l.Accept()
		if err != nil {
			return
		}
		for in := bufio.NewReader(conn); ; {
			args, err := readCommand(in)
			if err != nil {
				t.Errorf("greeting: %v", err)
				return
			}
			io.WriteString(conn, greeting(args))
			if args[0] == "subscribe" { // the last
				greeted <- conn
				return
			}
		}
	}()
	return "redis://" + l.Addr().String(), greeted
}

// greeting is what a server answers to the commands of a greeting.
func greeting(args []string) string {
	switch command := strings.ToLower(args[0]); {
	case command == "info":
		return bulk("redis_version:7.0.15\r\nrole:master\r\nrun_id:abc\r\nmaster_replid:def\r\n")
	case command == "hello" && args[1] == "3":
		return "%2\r\n" + bulk("proto") + ":3\r\n" + bulk("modules") + "*0\r\n"
	case command == "hello":
		return "*4\r\n" + bulk("id") + ":3\r\n" + bulk("role") + bulk("master")
	case command == "time":
		return "*2\r\n" + bulk("1700000000") + bulk("0")
	case command == "script":
		return bulk("sha")
	case command == "eval", command == "evalsha":
		return "*0\r\n"
	case command == "subscribe":
		return confirmation("subscribe", args[1:]...)
	}
	return "+OK\r\n"
}

// confirmation is what Redis sends after SUBSCRIBE or UNSUBSCRIBE.
func confirmation(kind string, channels ...string) (text string) {
	for i, ch := range channels {
		text += fmt.Sprintf(">3\r\n%s%s:%d\r\n", bulk(kind), bulk(ch), i+1)
	}
	return text
}

// What is asked does not wait for the answers that are due: a round trip is paid once.
// This Redis answers nothing until it has everything.
func TestNothingWaitsForAnswers(t *testing.T) {
	const asked = 20
	url, greeted := greet(t)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection")
	defer conn.Close()
	r.awaitWired()
	for i := range asked {
		r.Do([]redisop.Op{takeOp(fmt.Sprint(i), 1)})
	}
	in := bufio.NewReader(conn)
	for i := range asked {
		if args := must(readCommand(in)); args[3] != fmt.Sprint(i) {
			t.Fatalf("command %d: %q", i, args)
		}
	}
	io.WriteString(conn, strings.Repeat(":1700000000000001\r\n", asked))
	for got := 0; got < asked; {
		for _, res := range recv(t, r.results, "result") {
			if res.Outcome != redisop.Done || res.Name != fmt.Sprint(got) {
				t.Fatalf("answer %d: %+v", got, res)
			}
			got++
		}
	}
}

// A connection that ends with much under way leaves each operation with one result:
// NotSent where certainly nothing of it was sent.
func TestWhatIsUnderWayWhenAConnectionEnds(t *testing.T) {
	url, greeted := greet(t)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection") // of which nobody reads any more: what is asked piles up
	big := strings.Repeat("x", 2000)
	var ops []redisop.Op
	for i := range pipeline.DefaultBatches.InFlight {
		ops = append(ops, takeOp(fmt.Sprintf("%s%d", big, i), 1))
	}
	r.Do(ops)
	conn.Close()
	counts := map[redisop.Outcome]int{}
	for got := 0; got < len(ops); {
		for _, res := range recv(t, r.results, "result") {
			if want := ops[got].Name; res.Name != want {
				t.Fatalf("result %d is of %q", got, res.Name)
			}
			if counts[redisop.NotSent] > 0 && res.Outcome == redisop.Unknown {
				t.Errorf("result %d: sent behind what was not", got)
			}
			counts[res.Outcome]++
			got++
		}
	}
	if counts[redisop.Unknown] == 0 || counts[redisop.NotSent] == 0 || len(counts) != 2 {
		t.Errorf("outcomes %v; want some of Unknown, some of NotSent", counts)
	}
}

// What has been answered is handed out even if the next answer has only begun to
// come: the network may take its time over the rest.
func TestAnAnswerDoesNotWaitForTheRestOfTheNext(t *testing.T) {
	url, greeted := greet(t)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection")
	defer conn.Close()
	r.awaitWired()
	r.Do([]redisop.Op{takeOp("a", 1)})
	r.Do([]redisop.Op{takeOp("b", 1)})
	const answer = ":1700000000000001\r\n"
	for _, part := range []struct{ text, of string }{{answer + answer[:10], "a"}, {answer[10:], "b"}} {
		io.WriteString(conn, part.text)
		results := recv(t, r.results, "result of "+part.of)
		if len(results) != 1 || results[0].Name != part.of || results[0].Outcome != redisop.Done {
			t.Fatalf("%+v; want that %q is done", results, part.of)
		}
	}
}

// Results, messages and confirmations are reported in the order in which Redis sent them,
// however the network cuts them.
//
// Shows docs/queue.md: Messages.
func TestWhatRedisSendsIsReportedInItsOrder(t *testing.T) {
	own, x := wire.OwnChannel(ourUUID), channelOf("x")
	message := func(ch, text string) string { return ">3\r\n" + bulk("message") + bulk(ch) + bulk(text) }
	const result = ":1700000000000001\r\n"
	long := strings.Repeat("x", wire.MaxReplyText+1)
	stream := message(own, "recall m1") + result +
		message(own, "recall m2") + message(own, "free 5 m2") + message(own, long) + result + result +
		">2\r\n" + bulk("invalidate") + "*1\r\n" + bulk("x") + ">4\r\n" + bulk("pmessage") + bulk("*") + bulk(x) + bulk("0") + message("other", "0") +
		confirmation("subscribe", x) + message(x, long) + "-NOPERM no\r\n" + message(own, "requeue m3") + message(x, "0") +
		"-NOPERM no\r\n" + message(own, "recall m4") + result + message(x, "")
	want := []string{"message 2 m1", "result a", "message 2 m2", "message 3 m2", "result b", "result c",
		"subscribed x", "message 0 x", "result d", "message 4 m3", "message 0 x",
		"unsubscribed y", "message 2 m4", "result e", "message 0 x"}
	for _, size := range []int{1, 2, 7, 64, 4000, len(stream)} {
		url, greeted := greet(t)
		got := make(chan string, 100)
		names := func(what string) func(Event) {
			return func(e Event) { got <- what + " " + strings.Join(e.Names, " ") }
		}
		r := connected(t, url, func(c *Config) {
			c.Timeout = patience
			c.on(Results, func(e Event) {
				for _, res := range e.Results {
					got <- "result " + res.Name
				}
			})
			c.on(Messages, func(e Event) {
				for _, m := range e.Messages {
					got <- fmt.Sprintf("message %d %s", m.Kind, m.Name)
				}
			})
			c.on(Subscribed, names("subscribed"))
			c.on(Unsubscribed, names("unsubscribed"))
		})
		conn := recv(t, greeted, "connection")
		r.awaitWired()
		in := bufio.NewReader(conn)
		expect := func(command string) {
			t.Helper()
			if args := must(readCommand(in)); args[0] != command {
				t.Fatalf("command %q, want %s", args, command)
			}
		}
		for _, name := range []string{"a", "b", "c"} {
			r.Do([]redisop.Op{takeOp(name, 1)})
			expect("evalsha")
		}
		r.Subscribe(0, "x")
		expect("subscribe")
		r.Do([]redisop.Op{takeOp("d", 1)})
		expect("evalsha")
		r.Subscribe(0, "y")
		expect("subscribe")
		r.Do([]redisop.Op{takeOp("e", 1)})
		expect("evalsha")
		for rest := stream; rest != ""; {
			n := min(size, len(rest))
			io.WriteString(conn, rest[:n])
			rest = rest[n:]
		}
		for i, w := range want {
			if g := recv(t, got, "report"); g != w {
				t.Fatalf("in pieces of %d bytes: report %d is %q, want %q", size, i, g, w)
			}
		}
		conn.Close()
	}
}

// A subscription ends with its connection: after what was read on it, and after the results of
// what was in flight.
func TestEndOfAConnectionIsReportedInOrder(t *testing.T) {
	url, greeted := greet(t)
	got := make(chan string, 100)
	r := connected(t, url, func(c *Config) {
		c.Timeout = patience
		c.on(Results, func(e Event) {
			for _, res := range e.Results {
				got <- fmt.Sprintf("result %s %v", res.Name, res.Outcome)
			}
		})
		c.on(Messages, func(e Event) { got <- "message " + e.Messages[0].Name })
		c.on(Subscribed, func(e Event) { got <- "subscribed " + e.Names[0] })
		c.on(Unsubscribed, func(e Event) { got <- "unsubscribed " + strings.Join(e.Names, " ") })
		c.on(Down, func(Event) {
			select {
			case got <- "down":
			default: // there is no Redis any more
			}
		})
	})
	conn := recv(t, greeted, "connection")
	r.awaitWired()
	in := bufio.NewReader(conn)
	r.Subscribe(0, "x")
	must(readCommand(in))
	r.Subscribe(0, "y")
	must(readCommand(in))
	r.Do([]redisop.Op{takeOp("a", 1)})
	must(readCommand(in))
	io.WriteString(conn, confirmation("subscribe", channelOf("x"))+">3\r\n"+bulk("message")+bulk(channelOf("x"))+bulk("0"))
	conn.Close()
	for _, want := range []string{"subscribed x", "message x", "down", fmt.Sprint("result a ", redisop.Unknown), "unsubscribed x"} {
		if g := recv(t, got, "report"); g != want {
			t.Fatalf("%q, want %q", g, want)
		}
	}
}

// A confirmation of what was not requested shows that replies and commands do not match.
func TestConfirmationThatWasNotRequestedEndsTheConnection(t *testing.T) {
	for _, sent := range []string{
		confirmation("subscribe", channelOf("x")),
		confirmation("unsubscribe", channelOf("a")),
		"+OK\r\n",
		":1\r\n",
	} {
		url, greeted := greet(t)
		r := connected(t, url, func(c *Config) { c.Timeout = patience })
		conn := recv(t, greeted, "connection")
		r.awaitWired()
		if !strings.HasPrefix(sent, ">3\r\n"+bulk("subscribe")) {
			r.Subscribe(0, "a")
			must(readCommand(bufio.NewReader(conn)))
		}
		io.WriteString(conn, sent)
		if why := r.down(); !strings.Contains(why, "cannot be understood") {
			t.Errorf("%q: %s", sent, why)
		}
		conn.Close()
	}
}

// Without its own channel, a sidecar gets no lock that another one passes on to it. It makes its
// connection again, which begins with this subscription, and the reason is in the log and in the
// status. A request of its own that has no answer yet does not hide that.
func TestUnrequestedUnsubscribeOfTheOwnChannelEndsTheConnection(t *testing.T) {
	for _, isUnsubscribing := range []bool{false, true} {
		url, greeted := greet(t)
		r := connected(t, url, func(c *Config) { c.Timeout = patience })
		conn := recv(t, greeted, "connection")
		r.awaitWired()
		if isUnsubscribing {
			in := bufio.NewReader(conn)
			r.Subscribe(0, "a")
			must(readCommand(in))
			io.WriteString(conn, confirmation("subscribe", channelOf("a")))
			recv(t, r.subscribed, "subscription")
			r.Unsubscribe(0, "a")
			must(readCommand(in))
		}
		io.WriteString(conn, confirmation("unsubscribe", wire.OwnChannel(ourUUID)))
		const want = "ended the subscription to the channel on which other sidecars reach this one"
		if why := r.down(); !strings.Contains(why, want) || !strings.Contains(r.logged(), want) {
			t.Errorf("it is down because %s; the log has %s", why, r.logged())
		}
		conn.Close()
	}
}

// The lease of a lock begins in Redis at any time after the operation was written. A send
// time from after that would have the holder believe in the lock for too long.
func TestSendTimeIsFromBeforeTheOperationIsWritten(t *testing.T) {
	url, greeted := greet(t)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection")
	defer conn.Close()
	r.awaitWired()
	in := bufio.NewReader(conn)
	for i := range 3 {
		before := protocol.Now()
		r.Do([]redisop.Op{takeOp("a", uint64(1+i))})
		must(readCommand(in))
		written := protocol.Now()
		for protocol.Now() == written {
		}
		io.WriteString(conn, ":1700000000000001\r\n")
		if sent := recv(t, r.results, "result")[0].Sent; sent < before || sent > written {
			t.Errorf("sent %d ns after Do, and Redis had the operation %d ns after it", sent-before, written-before)
		}
	}
}

package store

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// greet is a server that takes part in the greeting of one connection, each answer of
// which takes it this long. Then the connection is for the caller.
func greet(t *testing.T, each time.Duration) (url string, greeted chan net.Conn) {
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
			time.Sleep(each)
			answer := "+OK\r\n"
			switch args[0] {
			case "info":
				answer = bulk("redis_version:7.0.15\r\nrole:master\r\nrun_id:abc\r\nmaster_replid:def\r\n")
			case "hello":
				answer = "*4\r\n" + bulk("id") + ":3\r\n" + bulk("role") + bulk("master")
			case "time":
				answer = "*2\r\n" + bulk("1700000000") + bulk("0")
			case "eval", "evalsha":
				answer = "*0\r\n"
			}
			io.WriteString(conn, answer)
			if args[0] == "evalsha" { // the last
				greeted <- conn
				return
			}
		}
	}()
	return "redis://" + l.Addr().String(), greeted
}

// What is asked of a Redis that is far away does not wait for the answers that are
// due: a round trip is paid once. This one answers nothing until it has everything.
func TestFarAwayNothingWaitsForAnswers(t *testing.T) {
	const asked = 20
	url, greeted := greet(t, 2*time.Millisecond) // far away: no answer is quicker
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection")
	defer conn.Close()
	for i := range asked {
		r.Do([]locktable.Op{takeOp(fmt.Sprint(i), 1)})
	}
	in := bufio.NewReader(conn)
	for i := range asked {
		if args := must(readCommand(in)); args[3] != fmt.Sprint(i) {
			t.Fatalf("command %d: %q", i, args)
		}
	}
	io.WriteString(conn, strings.Repeat("*3\r\n:1\r\n:1700000000000001\r\n:0\r\n", asked))
	for got := 0; got < asked; {
		for _, res := range recv(t, r.results, "result") {
			if res.Outcome != locktable.Done || res.Name != fmt.Sprint(got) {
				t.Fatalf("answer %d: %+v", got, res)
			}
			got++
		}
	}
}

// Nearby one batch follows the answers to the last, so that many share a system call.
// Whether a Redis is near depends on the machine; so the pipe is told.
func TestNearbyABatchWaitsForTheLast(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	r.one(takeOp("warm", 1))
	c := r.Store.commands
	s.signal(syscall.SIGSTOP) // answers nothing
	c.mu.Lock()
	c.pipe.fastest = nearby
	c.mu.Unlock()
	for i := range 10 {
		r.Do([]locktable.Op{takeOp(fmt.Sprint(i), 1)})
	}
	c.mu.Lock()
	flight, waiting := c.pipe.flight.len(), c.others.len()
	c.pipe.fastest = nearby + 1
	c.mu.Unlock()
	if flight != 1 || waiting != 9 {
		t.Errorf("%d under way, %d wait; want 1 and 9", flight, waiting)
	}
	r.Do([]locktable.Op{takeOp("10", 1)})
	c.mu.Lock()
	flight, waiting = c.pipe.flight.len(), c.others.len()
	c.mu.Unlock()
	if flight != 11 || waiting != 0 {
		t.Errorf("far away: %d under way, %d wait; want 11 and 0", flight, waiting)
	}
	s.signal(syscall.SIGCONT)
	for got := 0; got < 11; {
		got += len(recv(t, r.results, "result"))
	}
}

// A connection that ends with much under way leaves each operation with one result:
// Unsent where certainly nothing of it was sent.
func TestWhatIsUnderWayWhenAConnectionEnds(t *testing.T) {
	url, greeted := greet(t, 0)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection") // of which nobody reads any more: what is asked piles up
	c := r.Store.commands
	for up := false; !up; { // OnUp comes a moment before
		c.mu.Lock()
		if up = c.pipe != nil; up {
			c.pipe.fastest = nearby + 1
		}
		c.mu.Unlock()
	}
	big := strings.Repeat("x", 400)
	var ops []locktable.Op
	for i := range maxFlight {
		ops = append(ops, takeOp(fmt.Sprintf("%s%d", big, i), 1))
	}
	r.Do(ops)
	conn.Close()
	counts := map[locktable.Outcome]int{}
	for got := 0; got < len(ops); {
		for _, res := range recv(t, r.results, "result") {
			if want := ops[got].Name; res.Name != want {
				t.Fatalf("result %d is of %q", got, res.Name)
			}
			if counts[locktable.Unsent] > 0 && res.Outcome == locktable.Unknown {
				t.Errorf("result %d: sent behind what was not", got)
			}
			counts[res.Outcome]++
			got++
		}
	}
	if counts[locktable.Unknown] == 0 || counts[locktable.Unsent] == 0 || len(counts) != 2 {
		t.Errorf("outcomes %v; want some of Unknown, some of Unsent", counts)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

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
	for i := range 20_000 { // most of them wait behind those in flight
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

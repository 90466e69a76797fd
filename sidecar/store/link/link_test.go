package link

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// lkRedis starts a redis-server.
func startRedis(t *testing.T, args ...string) *harness.Redis {
	t.Helper()
	if testing.Short() {
		t.Skip("the short tests start no server")
	}
	return harness.StartRedis(t, args...)
}

// lkOpen starts a link to a server, and closes it at the end.
func open(t *testing.T, url string, change func(*Config)) *Link {
	t.Helper()
	d, err := Parse(Settings{URL: url, UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		UUID: ourUUID, Log: slog.New(slog.DiscardHandler), Shared: NewShared(),
		Hand: func(*pipeline.Delivery) {}, OnUp: func(_, _ bool, _ wire.Identity) {}, OnDown: func(error) {},
	}
	change(&c)
	l := New(c, d)
	go l.Run()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

const (
	ourUUID = "11111111-2222-8333-8444-555555555555"

	// Long enough for any machine; nothing waits for it unless it is broken.
	patience = 30 * time.Second
)

func recv[T any](t *testing.T, from chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	return v
}

// A Redis that sends messages is alive, although a reply is overdue.
func TestMessagesAreASignOfLife(t *testing.T) {
	s := startRedis(t)
	subscribed, received := make(chan bool, 1), make(chan bool, 1)
	l := open(t, s.TCPURL(), func(c *Config) {
		c.Hand = func(d *pipeline.Delivery) {
			switch d.Kind {
			case pipeline.Subscribed:
				subscribed <- true
			case pipeline.Messages:
				received <- true
			}
		}
	})
	l.Subscribe("x")
	recv(t, subscribed, "subscription")
	before := protocol.Now()
	for protocol.Now() == before {
	}
	s.Publish(t.Context(), new(wire.Keyspace).Channel("x"), "0")
	recv(t, received, "message")
	held := l.lock()
	defer held.unlock()
	if at := held.wired.lastByteAt.Load(); at <= before {
		t.Errorf("the last byte came %d ns before a message was sent", before-at)
	}
}

// The danger: a message that comes while a connection is made is forgotten.
func TestMoveWhileAConnectionIsTakenIntoUseEndsIt(t *testing.T) {
	s := startRedis(t)
	downs := make(chan string, 100)
	opened := make(chan *Link, 1)
	var once sync.Once
	l := open(t, s.TCPURL(), func(c *Config) {
		c.OnUp = func(_, _ bool, _ wire.Identity) { once.Do(func() { (<-opened).onMoved("127.0.0.1:1") }) }
		c.OnDown = func(err error) { downs <- err.Error() }
	})
	opened <- l
	if why := recv(t, downs, "OnDown"); !strings.Contains(why, "is no longer the master") {
		t.Errorf("%s", why)
	}
}

// A Sentinel that names the server that is used ends no connection to it.
func TestMoveToTheServerInUseEndsNothing(t *testing.T) {
	s := startRedis(t)
	ups := make(chan bool, 1)
	l := open(t, s.TCPURL(), func(c *Config) {
		c.OnUp = func(_, _ bool, _ wire.Identity) { ups <- true }
	})
	recv(t, ups, "OnUp")
	for l.connection() == nil {
	}
	l.onMoved("127.0.0.1:" + strconv.Itoa(s.Port))
	held := l.lock()
	defer held.unlock()
	if w := held.wired; w == nil || w.out.Err() != nil {
		t.Error("the connection ended")
	}
}

// The name of an endpoint that fails over leads to a replica first. The master is at another of its
// addresses.
//
// Shows docs/topologies.md: A managed service with one address.
func TestEndpointWithAReplicaAmongItsAddresses(t *testing.T) {
	replica := startRedis(t)
	if err := replica.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(harness.FreePort(t))).Err(); err != nil {
		t.Fatal(err)
	}
	startRedis(t, "--bind", "127.0.0.2", "--port", strconv.Itoa(replica.Port), "--protected-mode", "no")
	was := lookupHost
	lookupHost = func(context.Context, string) ([]string, error) { return []string{"127.0.0.1", "127.0.0.2"}, nil }
	t.Cleanup(func() { lookupHost = was })
	d, err := Parse(Settings{URL: "redis://localhost:" + strconv.Itoa(replica.Port), UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	trial := NewTrial(d)
	defer trial.Close()
	if _, _, _, err := trial.Try(t.Context()); err == nil || !strings.Contains(err.Error(), "read-only replica") {
		t.Fatalf("the first address leads to no replica: %v", err)
	}
	if _, _, _, err := trial.Try(t.Context()); err != nil {
		t.Errorf("the other address is not used: %v", err)
	}
}

// The danger: Close has cut the connection to a silent server, what waited has its results, and nothing wakes Run any more.
func TestLinkIsOverWhenWhatWaitedIsRefused(t *testing.T) {
	d, err := Parse(Settings{URL: "redis://127.0.0.1:1", UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	results := 0
	l := New(Config{
		UUID: ourUUID, Log: slog.New(slog.DiscardHandler), Shared: NewShared(),
		Hand: func(d *pipeline.Delivery) { results += len(d.Results) },
	}, d)
	l.Do([]redisop.Op{{Kind: redisop.Drop, Name: "a", HoldID: 1}})
	l.With((*pipeline.Machine).Finish)
	if _, over := l.check(); !over || results != 1 {
		t.Errorf("over: %v, with %d results; want true, with 1", over, results)
	}
}

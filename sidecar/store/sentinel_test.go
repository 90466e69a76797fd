package store

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The danger: a master that returned after its crash is believed. Between the first question and the
// greeting it came back, and a replica was promoted.
//
// Shows docs/topologies.md: A master that returns after its crash.
func TestMasterThatSentinelsNameNoMoreIsNotUsed(t *testing.T) {
	old, promoted := startRedis(t), startRedis(t)
	s := harness.StartFakeSentinel(t, func(round int) (string, int) {
		if round == 0 {
			return old.tcp(), 1
		}
		return promoted.tcp(), 2
	})
	r := open(t, s.URL())
	if why := r.down(); !strings.Contains(why, old.tcp()) || !strings.Contains(why, "returned after a failover") {
		t.Errorf("%s", why)
	}
	r.up()
	if address := r.Address(); address != promoted.tcp()+"/0" {
		t.Errorf("connected to %s", address)
	}
}

// A message of a Sentinel ends the connection to a server that serves on, at once.
func TestSentinelMessageEndsTheConnection(t *testing.T) {
	old, promoted := startRedis(t), startRedis(t)
	var moved sync.Mutex
	at := old.tcp()
	s := harness.StartFakeSentinel(t, func(int) (string, int) {
		moved.Lock()
		defer moved.Unlock()
		return at, 1
	})
	r := connected(t, s.URL())
	moved.Lock()
	at = promoted.tcp()
	moved.Unlock()
	_, from, _ := net.SplitHostPort(old.tcp())
	_, to, _ := net.SplitHostPort(promoted.tcp())
	s.Publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	if why := r.down(); !strings.Contains(why, "is no longer the master") {
		t.Errorf("%s", why)
	}
	r.up()
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done || r.Address() != promoted.tcp()+"/0" {
		t.Errorf("%+v at %s", res, r.Address())
	}
	// A message that names the server that is used ends nothing.
	s.Publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	if res := r.one(takeOp("lock", 2)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
}

// The danger: an error has a part of a password that was not encoded.
func TestWrongURLShowsNoPassword(t *testing.T) {
	for _, raw := range []string{
		"redis+sentinel://s/m?sentinel_password=pa&ssECRET", "redis://u:p@h?ssECRET=1@h", "redis://h?password=pa&ssECRET", "redis://:x@h?db=ssECRET@h",
	} {
		if err := Check(Config{URL: raw, UUID: ourUUID}); err == nil || strings.Contains(err.Error(), "ssECRET") || !strings.Contains(err.Error(), "percent-encoded") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// The danger: no Sentinel answers, and the last address leads to a server that has lost the locks, or was
// replaced.
//
// Shows docs/topologies.md: No Sentinel answers.
func TestLastAddressCountsForTheSameServerOnly(t *testing.T) {
	master := startRedis(t)
	var mu sync.Mutex
	at := master.tcp()
	set := func(address string) {
		mu.Lock()
		defer mu.Unlock()
		at = address
	}
	s := harness.StartFakeSentinel(t, func(int) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		return at, 1
	})
	r := connected(t, s.URL())
	set("") // it answers nonsense
	must(master.admin().ClientKillByFilter(ctx, "type", "normal", "skipme", "yes").Result())
	must(master.admin().ClientKillByFilter(ctx, "type", "pubsub").Result())
	r.down()
	if up := r.up(); up.lost {
		t.Error("the same server is said to have lost its data")
	}
	master.stop()
	r.down()
	master.start()
	for why := r.down(); !strings.Contains(why, "is not the server that it was"); why = r.down() {
	}
	set(master.tcp())
	if up := r.up(); !up.lost {
		t.Error("another server is said to have kept the data")
	}
}

// The old master accepts connections and does not answer. That the master moved ends the attempt.
func TestMoveEndsAnAttemptToConnect(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	promoted := startRedis(t)
	var mu sync.Mutex
	at := hangs.Addr().String()
	s := harness.StartFakeSentinel(t, func(int) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		return at, 1
	})
	r := open(t, s.URL(), func(c *Config) { c.Timeout = 10 * time.Minute })
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mu.Lock()
	at = promoted.tcp()
	mu.Unlock()
	_, from, _ := net.SplitHostPort(hangs.Addr().String())
	_, to, _ := net.SplitHostPort(promoted.tcp())
	s.Publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	r.up()
}

// A Sentinel that accepts connections and does not answer keeps no store from closing.
func TestSentinelThatHangsDoesNotHoldUpClose(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	r := open(t, "redis+sentinel://"+hangs.Addr().String()+"/mymaster", func(c *Config) { c.Timeout = 10 * time.Minute })
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	_ = r.Close(closed) // it waits for all goroutines
}

// The Sentinels of the URL that is read again decide nothing: they may be those of another Redis.
func TestOtherSentinelsNeedAReload(t *testing.T) {
	master, another := startRedis(t), startRedis(t)
	s := harness.StartFakeSentinel(t, func(int) (string, int) { return master.tcp(), 1 })
	other := harness.StartFakeSentinel(t, func(int) (string, int) { return another.tcp(), 9 })
	var mu sync.Mutex
	url := s.URL()
	r := connected(t, s.URL(), func(c *Config) {
		c.ReadURL = func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return url, nil
		}
	})
	mu.Lock()
	url = other.URL()
	mu.Unlock()
	must(master.admin().ClientKillByFilter(ctx, "type", "pubsub").Result())
	r.down()
	r.up()
	if r.Address() != master.tcp()+"/0" || !strings.Contains(r.logged(), "reload the daemon") {
		t.Errorf("connected to %s; the log:\n%s", r.Address(), r.logged())
	}
}

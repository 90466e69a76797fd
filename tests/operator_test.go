package tests

import (
	"os"
	"strings"
	"testing"
)

// What an operator does, or has happen, around a daemon that serves.

func TestSocketIsMadeAgainUnderTraffic(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	c := dial(t, d)
	held, err := c.Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.socket); err != nil {
		t.Fatal(err)
	}
	d.awaitAnswer()
	if err := held.Err(); err != nil {
		t.Errorf("the lock that was held: %v", err)
	}
	other := dial(t, d)
	if _, err := other.TryLock(t.Context(), "held"); err == nil {
		t.Error("a client of the new socket has the lock, too")
	}
	if !d.log.contains("the socket was removed, and is made again") {
		t.Errorf("the log does not have it:\n%s", d.log.String())
	}
	other.Close()
	c.Close()
	d.terminate()
	if _, err := os.Lstat(d.socket); err == nil {
		t.Error("the daemon left its socket behind")
	}
}

func TestStateThatWasRemovedIsReported(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	if err := os.Remove(d.socket + ".state"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the daemon reports that its state is gone", func() bool {
		return d.log.contains("a successor will not find the state")
	})
}

func TestPingTellsHostsOnDifferentRedisApart(t *testing.T) {
	a, b := startRedis(t), startRedis(t)
	hosts := []*daemon{startDaemon(t, a.tcpURL()), startDaemon(t, a.unixURL()), startDaemon(t, b.tcpURL())}
	var id []string
	for i, host := range hosts {
		health, err := dial(t, host).Health(t.Context())
		if err != nil || health.RedisRunID == "" {
			t.Fatalf("host %d: %+v, %v", i, health, err)
		}
		id = append(id, health.RedisRunID)
		out := host.run("ping")
		if out.code != 0 || !strings.Contains(out.stdout, health.RedisAddress+", run id "+health.RedisRunID) {
			t.Errorf("host %d: ping exits with %d and prints %q", i, out.code, out.stdout)
		}
		if !host.log.contains("run_id=" + health.RedisRunID) {
			t.Errorf("host %d: the log does not name the run id", i)
		}
	}
	if id[0] != id[1] || id[0] == id[2] {
		t.Errorf("the hosts have the Redis %q; want the first two the same, and the last another", id)
	}
}

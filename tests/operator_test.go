package tests

import (
	"os"
	"strings"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// What an operator does, or has happen, around a daemon that serves.

func TestSocketIsMadeAgainUnderTraffic(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	held, err := c.Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Socket); err != nil {
		t.Fatal(err)
	}
	d.AwaitSocket()
	if err := held.Err(); err != nil {
		t.Errorf("the lock that was held: %v", err)
	}
	other := harness.Dial(t, d)
	if _, err := other.TryLock(t.Context(), "held"); err == nil {
		t.Error("a client of the new socket has the lock, too")
	}
	if !d.Log.Contains("the socket was removed, and is made again") {
		t.Errorf("the log does not have it:\n%s", d.Log.String())
	}
	other.Close()
	c.Close()
	d.Terminate()
	if _, err := os.Lstat(d.Socket); err == nil {
		t.Error("the daemon left its socket behind")
	}
}

func TestPingTellsHostsOnDifferentRedisApart(t *testing.T) {
	a, b := harness.StartRedis(t), harness.StartRedis(t)
	hosts := []*harness.Daemon{harness.StartDaemon(t, a.TCPURL()), harness.StartDaemon(t, a.UnixURL()), harness.StartDaemon(t, b.TCPURL())}
	var id []string
	for i, host := range hosts {
		health, err := harness.Dial(t, host).Health(t.Context())
		if err != nil || health.RedisRunID == "" {
			t.Fatalf("host %d: %+v, %v", i, health, err)
		}
		id = append(id, health.RedisRunID)
		out := host.Run("ping")
		if out.Code != 0 || !strings.Contains(out.Stdout, health.RedisAddress+", run id "+health.RedisRunID) {
			t.Errorf("host %d: ping exits with %d and prints %q", i, out.Code, out.Stdout)
		}
		if !host.Log.Contains("run_id=" + health.RedisRunID) {
			t.Errorf("host %d: the log does not name the run id", i)
		}
	}
	if id[0] != id[1] || id[0] == id[2] {
		t.Errorf("the hosts have the Redis %q; want the first two the same, and the last another", id)
	}
}

// A socket that a dead daemon left is in nobody's way.
func TestSocketIsStale(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	d.Kill()
	if _, err := os.Stat(d.Socket); err != nil {
		t.Fatalf("the killed daemon left no socket: %v", err)
	}
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket)
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok")
}

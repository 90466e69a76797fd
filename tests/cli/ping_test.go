package cli

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// ping shows the address and the run id of the Redis that a host uses, so that people can
// compare hosts.
func TestPingShowsWhichRedisAHostUses(t *testing.T) {
	t.Parallel()
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
		host.Log.AwaitWords(t, "run_id="+health.RedisRunID)
	}
	if id[0] != id[1] || id[0] == id[2] {
		t.Errorf("the hosts have the Redis %q; want the first two the same, and the last another", id)
	}
}

// A Redis that answers and refuses every acquire does not look healthy.
func TestRedisThatRefusesAcquiresIsShown(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.TCPURL())
	holder := harness.Dial(t, d)
	if _, err := holder.Lock(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	if _, err := holder.TryLock(t.Context(), "free"); err == nil {
		t.Error("a full Redis granted a lock")
	}
	d.AwaitRedis("out of memory")
	const why = "is out of memory; raise maxmemory"
	if out := d.Run("ping"); out.Code != 74 || !strings.Contains(out.Stderr, "refuses what locks need") || !strings.Contains(out.Stderr, why) {
		t.Errorf("ping exits with %d: %s", out.Code, out.Stderr)
	}
	if out := d.Run("status"); !strings.Contains(out.Stdout, "degraded, it refuses what locks need: Redis at") || !strings.Contains(out.Stdout, why) {
		t.Errorf("status prints %s", out.Stdout)
	}
	if out := d.Run("metrics"); !strings.Contains(out.Stdout, "locksidecar_redis_degraded 1\n") || !strings.Contains(out.Stdout, "locksidecar_redis_up 1\n") {
		t.Errorf("metrics prints %s", out.Stdout)
	}
	d.Log.AwaitWords(t, "redis is degraded", why)
	r.MustDo("CONFIG", "SET", "maxmemory", "0")
	d.AwaitRedis("ok")
	d.Log.AwaitWords(t, "redis is not degraded any more")
	if out := d.Run("ping"); out.Code != 0 {
		t.Errorf("ping exits with %d: %s", out.Code, out.Stderr)
	}
}

// A Redis that deletes keys when its memory is full serves; what that means for locks is shown.
//
// Shows docs/guarantees.md: Full.
func TestRedisThatEvictsIsShown(t *testing.T) {
	r := harness.StartRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	d := harness.StartDaemon(t, r.UnixURL(), "--lease", "10s")
	d.Log.AwaitWords(t, "Redis may delete locks that are held", "maxmemory-policy allkeys-lru")
	for _, args := range [][]string{{"ping"}, {"status"}, {"status", "--json"}, {"serve", "--check", "--redis", r.UnixURL()}} {
		if out := d.Run(args...); out.Code != 0 || !strings.Contains(out.Stdout, "set maxmemory-policy noeviction there") {
			t.Errorf("%v exits with %d and prints %q %s", args, out.Code, out.Stdout, out.Stderr)
		}
	}
	l, err := harness.Dial(t, d).TryLock(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	r.MustDo("DEL", "job") // as an eviction does
	<-l.Done()
	const why = "Redis evicts keys (maxmemory-policy allkeys-lru)"
	d.Log.AwaitWords(t, "lock lost", "reason=deleted", why)
	if out := d.Run("events"); !strings.Contains(out.Stdout, "deleted") || !strings.Contains(out.Stdout, why) {
		t.Errorf("events prints %s", out.Stdout)
	}
}

// A master that grants locks with fewer replicas than it has serves; what that means in a failover is shown.
func TestTooFewReplicasThatAreNeededAreShown(t *testing.T) {
	t.Parallel()
	r, _ := harness.StartReplicas(t, 1)
	d := harness.StartDaemon(t, r.TCPURL())
	const says = "set min-replicas-to-write 1 there"
	d.Log.AwaitWords(t, "min-replicas-to-write")
	for _, args := range [][]string{{"ping"}, {"status"}, {"status", "--json"}, {"serve", "--check", "--redis", r.TCPURL()}} {
		if out := d.Run(args...); out.Code != 0 || !strings.Contains(out.Stdout, says) {
			t.Errorf("%v exits with %d and prints %q %s", args, out.Code, out.Stdout, out.Stderr)
		}
	}
}

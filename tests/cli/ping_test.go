package cli

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// ping shows the address and the run id of the Redis that a host uses, so that people can
// compare hosts.
func TestPingShowsWhichRedisAHostUses(t *testing.T) {
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

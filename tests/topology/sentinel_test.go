package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// load has clients of several hosts take one lock again and again, and checks that no two hold it.
type load struct {
	t      *testing.T
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	inside atomic.Int64
	grants atomic.Int64

	mu     sync.Mutex
	seen   map[uint64]bool // tokens
	overs  int             // two holders at one time
	longer time.Duration   // the longest time between two grants
	last   time.Time
}

func startLoad(t *testing.T, daemons ...*harness.Daemon) *load {
	l := &load{t: t, seen: make(map[uint64]bool), last: time.Now()}
	l.ctx, l.stop = context.WithCancel(t.Context())
	for _, d := range daemons {
		for range 2 {
			c := harness.Dial(t, d)
			l.wg.Go(func() {
				for l.ctx.Err() == nil {
					lock, err := c.Lock(l.ctx, "hot")
					if err != nil {
						continue
					}
					l.onGrant(lock)
					_ = lock.Unlock()
				}
			})
		}
	}
	l.await("the lock passes between the hosts")
	return l
}

func (l *load) onGrant(lock *locksidecar.Lock) {
	n := l.inside.Add(1)
	l.mu.Lock()
	if n != 1 && lock.Err() == nil {
		l.overs++
	}
	if l.seen[lock.Token()] {
		l.t.Errorf("token %d is granted twice", lock.Token())
	}
	l.seen[lock.Token()] = true
	l.longer = max(l.longer, time.Since(l.last))
	l.last = time.Now()
	l.mu.Unlock()
	l.grants.Add(1)
	l.inside.Add(-1)
}

// await waits for grants.
func (l *load) await(what string) {
	l.t.Helper()
	before := l.grants.Load()
	harness.Eventually(l.t, what, func() bool { return l.grants.Load() > before+100 })
}

// end stops the load. doubles: how often two clients held the lock at one time.
func (l *load) end() (doubles int) {
	l.stop()
	l.wg.Wait()
	l.t.Logf("%d grants, at most %v between two", l.grants.Load(), l.longer)
	return l.overs
}

// awaitAddress waits until a daemon is connected to a server.
func awaitAddress(t *testing.T, d *harness.Daemon, r *harness.Redis) {
	t.Helper()
	c := harness.Dial(t, d)
	harness.Eventually(t, "the daemon is connected to the master", func() bool {
		h, err := c.Health(t.Context())
		return err == nil && h.Redis == "ok" && h.RedisAddress == fmt.Sprintf("127.0.0.1:%d/0", r.Port)
	})
}

// The danger: a daemon stays at a master that has been replaced, and its clients have locks there that
// clients of other hosts get from the new one.
func TestSentinelFailoverThatIsPlanned(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 2, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
	sentinels := harness.StartSentinels(t, master, 2)
	daemons := []*harness.Daemon{
		harness.StartDaemon(t, sentinels.URL(), "--lease=1s"),
		harness.StartDaemon(t, sentinels.URL(), "--lease=1s"),
	}
	failOverUnderLoad(t, sentinels, servers, daemons)
}

// failOverUnderLoad has the Sentinels promote a replica while clients of the daemons take one lock, and
// checks that no two hold it.
func failOverUnderLoad(t *testing.T, sentinels harness.Sentinels, servers []*harness.Redis, daemons []*harness.Daemon) {
	t.Helper()
	l := startLoad(t, daemons...)
	if err := sentinels[0].Failover(t.Context(), harness.MasterName).Err(); err != nil {
		t.Fatal(err)
	}
	next := sentinels.AwaitAnother(servers)
	for _, d := range daemons {
		awaitAddress(t, d, next)
	}
	l.await("the lock passes at the new master")
	if n := l.end(); n > 0 {
		t.Errorf("two clients held the lock %d times", n)
	}
}

// The danger: a master that returns after its crash says that it is a master, and has none of the locks,
// until the Sentinels make it a replica.
//
// Shows docs/topologies.md: A master that returns after its crash.
func TestSentinelsOldMasterReturns(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	daemon := harness.StartDaemon(t, sentinels.URL(), "--lease=30s")
	c := harness.Dial(t, daemon)
	held, err := c.Lock(t.Context(), "held over a failover")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the replica has the lock", func() bool { return servers[1].Owner("held over a failover") != "" })

	master.Kill()
	sentinels.AwaitMaster(servers[1])
	awaitAddress(t, daemon, servers[1])
	if held.Err() != nil {
		t.Errorf("the failover ended a hold: %v", held.Err())
	}
	master.Start() // a master by its own account, until the Sentinels demote it
	late := harness.StartDaemon(t, sentinels.URL())
	awaitAddress(t, late, servers[1])
	if _, err := harness.Dial(t, late).TryLock(t.Context(), "held over a failover"); err == nil {
		t.Error("the lock is held twice")
	}
	if held.Err() != nil {
		t.Errorf("the old master ended a hold: %v", held.Err())
	}
}

// A Sentinel that missed the failover names the old master. Its configuration is older.
//
// Shows docs/topologies.md: A Sentinel that missed the failover.
func TestSentinelThatMissedTheFailover(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	daemon := harness.StartDaemon(t, sentinels.URL(), "--lease=2s")
	sentinels[2].Suspend()
	master.Kill()
	sentinels[:2].AwaitMaster(servers[1])
	awaitAddress(t, daemon, servers[1])
	master.Start() // a master without a lock
	sentinels[2].Resume()
	late := harness.StartDaemon(t, sentinels.URL())
	awaitAddress(t, late, servers[1])
	awaitAddress(t, daemon, servers[1])
}

// Without a majority no replica is promoted: the daemon waits, says so, and goes on when it is.
func TestSentinelsWithoutAQuorum(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	daemon := harness.StartDaemon(t, sentinels.URL(), "--lease=2s")
	sentinels[0].Kill()
	sentinels[1].Kill()
	master.Kill()
	daemon.AwaitRedis("redis at " + fmt.Sprintf("127.0.0.1:%d", master.Port) + " refuses connections")
	sentinels[2].Kill()
	// No Sentinel names the master to a daemon that was never connected.
	other := harness.LaunchDaemon(t, sentinels.URL())
	other.AwaitRedis("no sentinel names the master")
	for _, s := range sentinels {
		s.Start()
	}
	sentinels.AwaitMaster(servers[1])
	awaitAddress(t, daemon, servers[1])
	awaitAddress(t, other, servers[1])
	startLoad(t, daemon, other).end()
}

// Most of the Sentinels end, and the master serves: nothing fails, and everything says that a failover would.
//
// Shows docs/topologies.md: Fewer than a majority of the Sentinels answer.
func TestLossOfTheSentinelsIsReportedWhileTheMasterServes(t *testing.T) {
	t.Parallel()
	master, _ := harness.StartReplicas(t, 0)
	sentinels := harness.StartSentinels(t, master, 0)
	d := harness.StartDaemon(t, sentinels[:1].URL(), "--log-format=json", "--log-level=debug") // the others are learned
	answering := func(n int) bool {
		text := d.Run("metrics").Stdout
		return strings.Contains(text, "locksidecar_sentinels 3\n") && strings.Contains(text, fmt.Sprintf("locksidecar_sentinels_answering %d\n", n))
	}
	harness.Eventually(t, "all Sentinels are counted", func() bool { return answering(3) })
	sentinels[1].Kill()
	sentinels[2].Kill()
	const risk = "1 of 3 Sentinels of the master \"" + harness.MasterName + "\" answer"
	harness.Eventually(t, "the status says that most Sentinels are lost", func() bool {
		return strings.Contains(d.Run("status").Stdout, risk)
	})
	if !answering(1) {
		t.Error("the metrics count more")
	}
	if ping := d.Run("ping"); ping.Code != 0 || !strings.Contains(ping.Stdout, "warning: "+risk) {
		t.Errorf("ping ends with %d: %s%s", ping.Code, ping.Stdout, ping.Stderr)
	}
	if out := d.Run("run", "--wait=0", "job", "true"); out.Code != 0 {
		t.Errorf("no lock: %d, %s", out.Code, out.Stderr)
	}
	sentinels[0].Kill()
	harness.Eventually(t, "none answers", func() bool { return answering(0) })
	for _, s := range sentinels {
		s.Start()
	}
	harness.Eventually(t, "the status has no risk any more", func() bool { return !strings.Contains(d.Run("status").Stdout, "RISK") })
	d.Log.AwaitWords(t, "most of the Sentinels do not answer", "most of the Sentinels answer again")
	for line := range strings.Lines(d.Log.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is no JSON: %s", line)
		}
	}
}

// User and password before the @ are for Redis; the Sentinels have options of their own. Neither is
// shown.
func TestSentinelsWithAPassword(t *testing.T) {
	t.Parallel()
	master, _ := harness.StartReplicas(t, 0)
	sentinels := harness.StartSentinels(t, master, 0, "requirepass sentinels-secret")
	refused := harness.LaunchDaemon(t, sentinels.URL())
	refused.AwaitRedis("write sentinel_password=")
	wrong := harness.LaunchDaemon(t, sentinels.URL()+"?sentinel_password=wrong-secret")
	wrong.AwaitRedis("does not accept the options sentinel_username and sentinel_password")
	daemon := harness.StartDaemon(t, sentinels.URL()+"?sentinel_password=sentinels-secret")
	awaitAddress(t, daemon, master)
	for _, d := range []*harness.Daemon{refused, wrong, daemon} {
		if strings.Contains(d.Log.String(), "-secret") {
			t.Errorf("the log has a password:\n%s", d.Log.String())
		}
	}
}

// The URL has one Sentinel, which ends: the others were learned from it.
//
// Shows docs/topologies.md: Other Sentinels are learned.
func TestSentinelsAreLearned(t *testing.T) {
	t.Parallel()
	master, servers := harness.StartReplicas(t, 1)
	sentinels := harness.StartSentinels(t, master, 1)
	daemon := harness.StartDaemon(t, sentinels[:1].URL(), "--lease=2s")
	sentinels[0].Kill()
	master.Kill()
	sentinels[1:].AwaitMaster(servers[1])
	awaitAddress(t, daemon, servers[1])
}

// What does not watch the master, or is no Sentinel, is named with what to do.
func TestSentinelsThatDoNotKnowTheMaster(t *testing.T) {
	t.Parallel()
	master, _ := harness.StartReplicas(t, 0)
	sentinels := harness.StartSentinels(t, master, 0)
	harness.LaunchDaemon(t, strings.TrimSuffix(sentinels.URL(), harness.MasterName)+"another").
		AwaitRedis("it watches no master of this name; check it in the redis url")
	harness.LaunchDaemon(t, "redis+sentinel://"+strings.TrimPrefix(master.TCPURL(), "redis://")+"/"+harness.MasterName).
		AwaitRedis("it is not a sentinel; check its port")
	// It takes the greeting of TLS for half a line, and does not answer.
	harness.LaunchDaemon(t, sentinels.URL()+"?sentinel_tls=true").AwaitRedis("or remove sentinel_tls=true from the redis url")
}

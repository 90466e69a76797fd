package alerts

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/tests/harness"
)

var record = flag.Bool("record", false, "record the outages again, in real time: 7 minutes with -parallel 16; as root, for a file system that is full")

// stage is where an outage is recorded: a daemon, its Redis, and three programs that hold a lock
// each, while two others take a fourth one in turn.
type stage struct {
	t       *testing.T
	redis   *harness.Redis   // nil: it is a Cluster
	cluster *harness.Cluster // nil: it is one Redis

	sentinels harness.Sentinels // of redis; nil: there are none

	d     *harness.Daemon
	other *harness.Daemon // of another host; nil: there is one host
	start time.Time

	mu     sync.Mutex
	events map[string]float64
}

// note records when something happened.
func (s *stage) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, is := s.events[what]; !is {
		s.events[what] = time.Since(s.start).Round(100 * time.Millisecond).Seconds()
	}
}

// at waits until so long after the first scrape: a recording is of real time.
func (s *stage) at(d time.Duration) {
	select {
	case <-time.After(time.Until(s.start.Add(d))):
	case <-s.t.Context().Done():
	}
}

// outages are what is recorded: for how long, and what happens meanwhile.
var outages = map[string]struct {
	says string
	last time.Duration
	run  func(*stage)
}{
	"nothing": {"The daemon is started again, Redis does not answer for 3 s, and a program that holds a lock is killed.", 100 * time.Second, func(s *stage) {
		s.at(20 * time.Second)
		s.d.Terminate()
		s.note("stopped")
		s.d.Start()
		s.at(50 * time.Second)
		s.redis.Signal(syscall.SIGSTOP)
		s.at(53 * time.Second)
		s.redis.Signal(syscall.SIGCONT)
		s.at(75 * time.Second)
		w := harness.StartGoWorker(s.t, s.d)
		w.Lock("of a program that is killed")
		w.Kill()
	}},
	"redis-stopped": {"Redis is killed, and does not come back.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.redis.Kill()
	}},
	"shard-down": {"One of the three masters of a Redis Cluster is killed, and has no replica. The others serve without it.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.cluster.MasterOf("held:0").Kill()
	}},
	"slot-open": {"A program that moves a slot of a Redis Cluster ends before the slot has moved.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		from := s.cluster.MasterOf("held:0")
		for _, to := range s.cluster.Masters() {
			if to != from {
				s.cluster.OpenMigration(harness.Slot("held:0"), to)
				return
			}
		}
	}},
	"sentinels-lost": {"Two of three Sentinels are killed. The master serves.", 100 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.sentinels[0].Kill()
		s.sentinels[1].Kill()
	}},
	"state-replaced": {"Another program puts a file into the place of the state file.", 100 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		other := s.d.Socket + ".other"
		if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Rename(other, s.d.Socket+".state")); err != nil {
			s.t.Error(err)
		}
	}},
	"redis-hangs": {"Redis is stopped by SIGSTOP: connections stay, and nothing is answered.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.redis.Signal(syscall.SIGSTOP)
		s.at(85 * time.Second)
		s.redis.Signal(syscall.SIGCONT)
	}},
	"redis-full": {"Redis has no memory left, and refuses every acquire.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.redis.MustDo("CONFIG", "SET", "maxmemory", "1")
	}},
	"acl-refuses": {"The ACL of Redis no longer permits the daemon to write a field, and so every acquire is refused.", 150 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.redis.MustDo("ACL", "SETUSER", "default", "-hset")
	}},
	"redis-stalls": {"Redis does not answer for 5 s, twice.", 80 * time.Second, func(s *stage) {
		for _, at := range []time.Duration{20 * time.Second, 45 * time.Second} {
			s.at(at)
			s.redis.Signal(syscall.SIGSTOP)
			s.at(at + 5*time.Second)
			s.redis.Signal(syscall.SIGCONT)
		}
	}},
	"forced": {"A person ends the hold of a program with force-release.", 60 * time.Second, func(s *stage) {
		s.at(22 * time.Second)
		s.note("outage")
		if got := s.d.Run("force-release", "held:0"); got.Code != 0 {
			s.t.Error(got.Stderr)
		}
	}},
	"two-redis": {"The daemon of a second host is started again, with another Redis.", 130 * time.Second, func(s *stage) {
		redis := harness.StartRedis(s.t)
		s.at(22 * time.Second)
		s.note("outage")
		s.other.Terminate()
		s.other.Start("--redis", redis.TCPURL())
	}},
	"data-lost": {"FLUSHALL deletes the keys of all locks.", 70 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.redis.MustDo("FLUSHALL")
	}},
	"daemon-killed": {"The daemon is killed, and does not come back.", 90 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.d.Kill()
	}},
	"daemon-hangs": {"The daemon is stopped by SIGSTOP.", 90 * time.Second, func(s *stage) {
		s.at(30 * time.Second)
		s.note("outage")
		s.d.Signal(syscall.SIGSTOP)
		s.at(88 * time.Second)
		s.d.Signal(syscall.SIGCONT)
	}},
	"waiter-stuck": {"A program waits for a lock that another one does not release.", 400 * time.Second, func(s *stage) {
		s.at(20 * time.Second)
		s.note("outage")
		c := harness.Dial(s.t, s.d)
		if _, err := c.Lock(s.t.Context(), "stuck"); err != nil {
			s.t.Error(err)
		}
		go c.Lock(s.t.Context(), "stuck")
	}},
	"permits-saturated": {"A program takes all permits of a semaphore, and another one waits for one.", 180 * time.Second, func(s *stage) {
		s.at(20 * time.Second)
		s.note("outage")
		if _, err := harness.Dial(s.t, s.d).Semaphore(saturated, 2).Acquire(s.t.Context(), 2); err != nil {
			s.t.Error(err)
		}
		go harness.Dial(s.t, s.d).Semaphore(saturated, 2).Acquire(s.t.Context(), 1)
	}},
	"leak": {"A program takes one lock after the other and gives none back. Its limit is 100.", 150 * time.Second, func(s *stage) {
		s.at(20 * time.Second)
		s.note("outage")
		c := harness.Dial(s.t, s.d)
		for i := range 95 {
			if _, err := c.Lock(s.t.Context(), fmt.Sprintf("leak:%d", i)); err != nil {
				s.t.Error(err)
				return
			}
		}
	}},
	"state-full": {"The file system of the state file has no room: the daemon cannot store 2,000 more locks.", 180 * time.Second, func(s *stage) {
		s.at(20 * time.Second)
		s.note("outage")
		c := harness.Dial(s.t, s.d)
		for i := range 2000 {
			if _, err := c.Lock(s.t.Context(), fmt.Sprintf("many:%d", i)); err != nil {
				s.t.Error(err)
				return
			}
		}
	}},
}

func TestRecordOutages(t *testing.T) {
	if !*record {
		t.Skip("go test ./tests/alerts -run Record -record -parallel 16")
	}
	for name, o := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &stage{t: t, events: make(map[string]float64)}
			switch name {
			case "shard-down", "slot-open":
				s.cluster = harness.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
				s.d = harness.NewDaemon(t, s.cluster.URL())
			case "sentinels-lost":
				s.redis, _ = harness.StartReplicas(t, 0)
				s.sentinels = harness.StartSentinels(t, s.redis, 0)
				s.d = harness.NewDaemon(t, s.sentinels.URL())
			default:
				s.redis = harness.StartRedis(t)
				s.d = harness.NewDaemon(t, s.redis.TCPURL())
			}
			if name == "state-full" {
				s.d.Socket = filepath.Join(smallFileSystem(t), "s.sock")
			}
			switch name {
			case "leak":
				s.d.Start("--max-holds=100", "--expected-hold=leak:*=30s")
			case "permits-saturated":
				s.d.Start("--metrics-names=" + saturated)
			default:
				s.d.Start()
			}
			s.d.AwaitSocket()
			s.d.AwaitRedis("ok")
			if name == "two-redis" {
				s.other = harness.NewDaemon(t, s.redis.TCPURL())
				s.other.Start()
				s.other.AwaitSocket()
				s.other.AwaitRedis("ok")
			}
			s.use()
			r := recording{Outage: o.says, Events: s.events, Series: make(map[string]string)}
			s.start = time.Now()
			done := make(chan struct{})
			go func() { defer close(done); o.run(s) }()
			s.scrape(&r, metricsOfRules(t), int(o.last/interval))
			<-done
			s.mu.Lock()
			defer s.mu.Unlock()
			text, err := yaml.Marshal(&r)
			if err == nil {
				err = os.WriteFile(filepath.Join("testdata", name+".yml"), text, 0o644)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

const saturated = "partner-api"

// use has programs use locks until the end of the recording.
func (s *stage) use() {
	for i := range 3 {
		l, err := harness.Dial(s.t, s.d).Lock(s.t.Context(), fmt.Sprintf("held:%d", i))
		if err != nil {
			s.t.Fatal(err)
		}
		lost, cancel := l.Context(s.t.Context())
		s.t.Cleanup(cancel)
		go func() {
			<-lost.Done()
			if s.t.Context().Err() == nil {
				s.note("lost")
			}
		}()
	}
	for range 2 {
		c := harness.Dial(s.t, s.d)
		go func() {
			pause := time.NewTicker(50 * time.Millisecond)
			defer pause.Stop()
			for s.t.Context().Err() == nil {
				ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
				if l, err := c.Lock(ctx, "in turn"); err == nil {
					l.Unlock()
				}
				cancel()
				<-pause.C
			}
		}()
	}
}

// scrape reads the metrics as Prometheus does: so many times, and a daemon that does not answer
// within 4 s is down.
func (s *stage) scrape(r *recording, names []string, times int) {
	values := make(map[string][]string)
	for n := range times {
		s.at(time.Duration(n) * interval)
		got := make(map[string]string)
		s.read(s.d, "db-7", names, got)
		if s.other != nil {
			s.read(s.other, "db-8", names, got)
		}
		for series := range got {
			if values[series] == nil {
				values[series] = slices.Repeat([]string{"_"}, n)
			}
		}
		for series := range values {
			value, is := got[series]
			switch {
			case !is && n > 0 && values[series][n-1] != "_" && values[series][n-1] != "stale":
				value = "stale"
			case !is:
				value = "_"
			}
			values[series] = append(values[series], value)
		}
	}
	for _, series := range slices.Sorted(maps.Keys(values)) {
		r.Series[series] = strings.Join(values[series], " ")
	}
}

// read reads the metrics of one daemon.
func (s *stage) read(d *harness.Daemon, instance string, names []string, got map[string]string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), interval-time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, harness.Program(s.t), "metrics")
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	var out bytes.Buffer
	cmd.Stdout = &out
	up := "1"
	if err := cmd.Run(); err != nil {
		up = "0"
	}
	got[withJob("up", instance)] = up
	for line := range strings.Lines(out.String()) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(names, strings.SplitN(series, "{", 2)[0]) {
			got[withJob(series, instance)] = value
		}
	}
}

// withJob adds the labels that Prometheus adds.
func withJob(series, instance string) string {
	labels := fmt.Sprintf(`instance=%q,job="locksidecar"`, instance)
	if name, own, has := strings.Cut(strings.TrimSuffix(series, "}"), "{"); has {
		return name + "{" + labels + "," + own + "}"
	}
	return series + "{" + labels + "}"
}

// smallFileSystem mounts a file system of 128 KiB.
func smallFileSystem(t *testing.T) string {
	dir := harness.ShortDir(t)
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Skip("a file system that becomes full needs root: ", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

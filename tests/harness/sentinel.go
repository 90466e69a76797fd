package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which the Sentinels of StartSentinels watch a master.
const MasterName = "mymaster"

// A Sentinel is a process of redis-server that watches a master.
type Sentinel struct {
	*redis.SentinelClient
	Port int

	t     testing.TB
	file  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	log   Output
}

// Sentinels watch a master and its replicas.
type Sentinels []*Sentinel

// StartReplicas starts a master and so many replicas, which have its data.
func StartReplicas(t testing.TB, replicas int, args ...string) (master *Redis, all []*Redis) {
	t.Helper()
	args = append([]string{"--repl-diskless-sync-delay", "0"}, args...)
	master = StartRedis(t, args...)
	all = []*Redis{master}
	for range replicas {
		r := StartRedis(t, args...)
		r.Follow(master)
		all = append(all, r)
	}
	return master, all
}

// Follow makes the server a replica, and returns when it has the data of its master.
func (r *Redis) Follow(master *Redis) {
	r.t.Helper()
	r.MustDo("REPLICAOF", "127.0.0.1", master.Port)
	Eventually(r.t, "the replica is in sync", func() bool {
		return strings.Contains(r.Info(r.t.Context(), "replication").Val(), "master_link_status:up")
	})
}

// StartSentinels starts three Sentinels that watch a master, and returns when each knows the others
// and as many replicas as there are. A master is down if it does not answer for a minute, and two of them
// agree: on a busy machine too it is replaced only when a test wants that (AwaitMaster, Failover). More settings
// are lines of their configuration.
func StartSentinels(t testing.TB, master *Redis, replicas int, settings ...string) Sentinels {
	t.Helper()
	var all Sentinels
	text := fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %d 2\n", MasterName, master.Port) +
		"sentinel down-after-milliseconds " + MasterName + " 60000\nsentinel failover-timeout " + MasterName + " 5000\n" +
		strings.Join(settings, "\n") + "\n"
	for range 3 {
		all = append(all, startSentinel(t, text))
	}
	for _, s := range all {
		Eventually(t, "the Sentinels know each other and the replicas", func() bool {
			m, err := s.Master(t.Context(), MasterName).Result()
			return err != nil && strings.HasPrefix(err.Error(), "NOAUTH") ||
				m["num-other-sentinels"] == "2" && m["num-slaves"] == strconv.Itoa(replicas) && m["flags"] == "master"
		})
	}
	return all
}

// startSentinel starts a Sentinel on a port that is free.
func startSentinel(t testing.TB, settings string) *Sentinel {
	t.Helper()
	for attempt := 0; ; attempt++ {
		s := &Sentinel{t: t, Port: FreePort(t)}
		dir := ShortDir(t)
		s.file = filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %d\ndir %s\n%s", s.Port, dir, settings)
		if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.SentinelClient = redis.NewSentinelClient(&redis.Options{Addr: s.Address(), DisableIdentity: true, Protocol: 2})
		if s.Start() {
			t.Cleanup(func() {
				s.Close()
				s.Kill()
				if t.Failed() {
					t.Logf("Sentinel at %d:\n%s", s.Port, Tail(s.log.String(), 40))
				}
			})
			return s
		}
		// Another process may have bound the port first.
		if s.Close(); attempt == 5 {
			t.Fatalf("the Sentinel ended:\n%s", s.log.String())
		}
	}
}

// Address returns host and port.
func (s *Sentinel) Address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)) }

// Start starts a Sentinel that has ended, with what it knew, and returns when it answers. False: it
// has ended again.
func (s *Sentinel) Start() bool {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", s.file, "--sentinel")
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, ended := s.cmd, make(chan struct{})
	s.ended = ended
	go func() { cmd.Wait(); close(ended) }()
	runs := true
	Eventually(s.t, "the Sentinel answers", func() bool {
		select {
		case <-ended:
			runs = false
			return true
		default:
		}
		err := s.Ping(context.Background()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
	return runs
}

// Kill ends the Sentinel.
func (s *Sentinel) Kill() {
	s.cmd.Process.Kill()
	<-s.ended
}

// URL returns the URL of the master, as the setting redis takes it.
func (all Sentinels) URL() string {
	var addresses []string
	for _, s := range all {
		addresses = append(addresses, s.Address())
	}
	return "redis+sentinel://" + strings.Join(addresses, ",") + "/" + MasterName
}

// AwaitMaster has the Sentinels notice that the master has ended, and waits until each names a server as the next one,
// which they do not replace.
func (all Sentinels) AwaitMaster(r *Redis) {
	r.t.Helper()
	notice := func(ms int) {
		for _, s := range all {
			if err := s.Do("SENTINEL", "SET", MasterName, "down-after-milliseconds", ms); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	notice(500)
	defer notice(60_000)
	for _, s := range all {
		Eventually(r.t, "each Sentinel names the new master", func() bool {
			at, err := s.GetMasterAddrByName(context.Background(), MasterName).Result()
			return err == nil && len(at) == 2 && at[1] == strconv.Itoa(r.Port)
		})
	}
}

// MasterOf returns the server that the Sentinel names as the master; nil: none of these.
func (s *Sentinel) MasterOf(servers []*Redis) *Redis {
	at, err := s.GetMasterAddrByName(s.t.Context(), MasterName).Result()
	for _, r := range servers {
		if err == nil && len(at) == 2 && at[1] == strconv.Itoa(r.Port) {
			return r
		}
	}
	return nil
}

// PublishEach sets how often the Sentinels publish what they know, and has them ask each server for its role each
// second. A server that is to be a replica and is none becomes one when four of these periods have passed, and
// they notice that: 8 to 18 s by default. Redis 6.2 has no such settings.
func (all Sentinels) PublishEach(period time.Duration) {
	for _, s := range all {
		if err := s.Do("SENTINEL", "DEBUG", "PUBLISH-PERIOD", period.Milliseconds(), "INFO-PERIOD", 1000); err != nil && !strings.Contains(err.Error(), "nknown") {
			s.t.Fatal(err)
		}
	}
}

// Do has the Sentinel execute a command.
func (s *Sentinel) Do(args ...any) error {
	return s.Process(s.t.Context(), redis.NewCmd(s.t.Context(), args...))
}

// AwaitAnother waits until the first Sentinel names another master than the first server, and returns it.
func (all Sentinels) AwaitAnother(servers []*Redis) (master *Redis) {
	servers[0].t.Helper()
	Eventually(servers[0].t, "a Sentinel names the new master", func() bool {
		master = all[0].MasterOf(servers[1:])
		return master != nil
	})
	return master
}

// Suspend stops the process of a Sentinel, which keeps its connections.
func (s *Sentinel) Suspend() { s.signal(syscall.SIGSTOP) }

// Resume continues it.
func (s *Sentinel) Resume() { s.signal(syscall.SIGCONT) }

func (s *Sentinel) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

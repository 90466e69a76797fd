package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A hostile local user: a process that sends whatever the protocol allows, as fast as it
// can, over as many connections as it gets. Neighbours are safe from it (invariant 7):
// their locks are renewed in time, and their requests are answered.

const (
	attackRole = "attack"
	attackKind = "LOCKSIDECAR_TEST_ATTACK"
	attackSize = "LOCKSIDECAR_TEST_ATTACK_SIZE"
	nobodyUID  = 65534
)

// attacks are what the role does: each with its number of connections or locks. The first
// two show what of a figure is due to the processors alone.
var attacks = []struct {
	kind string
	size int
	says string
}{
	{"burn", 2, "none: 2 threads that compute"},
	{"burn", 8, "none: 8 threads that compute"},
	{"ping", 32, "ping flood, 32 connections"},
	{"ping", 1000, "ping flood, 1,000 connections"},
	{"pairs", 64, "acquire and release, 64 connections"},
	{"fresh", 64, "names never used before, 64 connections"},
	{"deadlock", 1000, "deadlock searches, 1,000 connections"},
	{"deadlock", 3900, "deadlock searches, 3,900 connections"},
	{"list", 64, "list of 10,000 locks, 64 connections"},
	{"cancel", 16000, "16,000 waiters, canceled and back"},
	{"deaf", 1000, "1,000 connections that never read"},
	{"connect", 64, "connections opened and closed"},
	{"max_hold", 100000, "100,000 locks that end at one moment"},
	{"hold", 262144, "262,144 locks, their holder is killed"},
}

// ---- the attacker's side ------------------------------------------------------

// attacker is one connection of the hostile process.
type attacker struct {
	conn   net.Conn
	frames *protocol.Reader
	id     uint64

	refused bool // its hello was
}

func newAttacker() (*attacker, error) {
	conn, err := net.Dial("unix", os.Getenv("LOCKSIDECAR_SOCKET"))
	if err != nil {
		return nil, err
	}
	a := &attacker{conn: conn, frames: protocol.NewReader(conn)}
	if err := a.send(&protocol.Hello{ID: a.next(), V: protocol.Version, Client: "attack"}); err != nil {
		return nil, err
	}
	body, err := a.frames.Next()
	if err != nil {
		return nil, err
	}
	var d protocol.ReplyDecoder
	r, err := d.Decode(body)
	_, a.refused = r.(*protocol.Err)
	return a, err
}

func (a *attacker) next() uint64 { a.id++; return a.id }

func (a *attacker) send(requests ...protocol.Request) error {
	var b []byte
	for _, r := range requests {
		b = r.Append(b)
	}
	_, err := a.conn.Write(b)
	return err
}

// granted reads answers until it has seen n grants, and calls f for each.
func (a *attacker) granted(n int, f func(protocol.AcquireOK)) error {
	var d protocol.ReplyDecoder
	for n > 0 {
		body, err := a.frames.Next()
		if err != nil {
			return err
		}
		r, err := d.Decode(body)
		if err != nil {
			return err
		}
		if answer, ok := r.(*protocol.Answer); ok {
			var g protocol.AcquireOK
			if answer.Unpack(&g) == nil {
				f(g)
				n--
			}
		}
	}
	return nil
}

// readAll throws away what comes.
func (a *attacker) readAll() { _, _ = io.Copy(io.Discard, a.conn) }

func runAttack() int {
	size, _ := strconv.Atoi(os.Getenv(attackSize))
	run := map[string]func(int) error{
		"burn": burn, "ping": attackPing, "pairs": attackPairs, "fresh": attackFresh, "deadlock": attackDeadlock, "list": attackList,
		"cancel": attackCancel, "deaf": attackDeaf, "connect": attackConnect, "max_hold": attackMaxHold, "hold": attackHold, "crowd": attackCrowd,
	}[os.Getenv(attackKind)]
	if err := run(size); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		return 1
	}
	select {}
}

// ready answers the command to begin: the attack is under way. It reports numbers.
func ready(numbers ...int64) {
	var c command
	if err := json.NewDecoder(os.Stdin).Decode(&c); err == nil {
		_ = json.NewEncoder(os.Stdout).Encode(answer{N: c.N, Waits: numbers})
	}
}

// overConnections runs f on so many connections at once.
func overConnections(n int, f func(i int, a *attacker)) error {
	var all []*attacker
	for range n {
		a, err := newAttacker()
		if err != nil {
			return err
		}
		all = append(all, a)
	}
	for i, a := range all {
		go f(i, a)
	}
	ready()
	return nil
}

// burn is no attack: it uses processors, like an attack, and leaves the daemon alone.
func burn(n int) error {
	runtime.GOMAXPROCS(n)
	var turns atomic.Int64
	for range n {
		go func() {
			for turns.Add(1) > 0 {
			}
		}()
	}
	ready()
	return nil
}

func attackPing(n int) error {
	return overConnections(n, func(_ int, a *attacker) {
		go a.readAll()
		for {
			var pings []protocol.Request
			for range 64 {
				pings = append(pings, &protocol.Ping{ID: a.next()})
			}
			if a.send(pings...) != nil {
				return
			}
		}
	})
}

func attackPairs(n int) error {
	return pairsOf(n, func(i, k int) string { return fmt.Sprintf("attack:%d:%d", i, k%64) })
}

func attackFresh(n int) error {
	pid := os.Getpid()
	return pairsOf(n, func(i, k int) string { return fmt.Sprintf("attack:%d:%d:%d", pid, i, k) })
}

func pairsOf(n int, name func(i, k int) string) error {
	return overConnections(n, func(i int, a *attacker) {
		for k := 0; ; {
			var acquires []protocol.Request
			for range 64 {
				acquires = append(acquires, &protocol.Acquire{ID: a.next(), Name: name(i, k), WaitMS: protocol.Forever})
				k++
			}
			if a.send(acquires...) != nil {
				return
			}
			var releases []protocol.Request
			if a.granted(64, func(g protocol.AcquireOK) { releases = append(releases, &protocol.Release{Hold: g.Hold}) }) != nil || a.send(releases...) != nil {
				return
			}
		}
	})
}

// attackDeadlock has every request walk a graph of owners who wait for each other.
func attackDeadlock(n int) error {
	const width = 300
	a, err := newAttacker()
	if err != nil {
		return err
	}
	// Owner 1 holds "hub", and waits for 300 locks, each of which has an owner of its own.
	var setup []protocol.Request
	setup = append(setup, &protocol.Acquire{ID: a.next(), Name: "hub", Owner: 1, WaitMS: protocol.Forever})
	for i := range width {
		setup = append(setup, &protocol.Acquire{ID: a.next(), Name: fmt.Sprint("spoke:", i), Owner: uint64(2 + i), WaitMS: protocol.Forever})
	}
	if err := a.send(setup...); err != nil {
		return err
	}
	if err := a.granted(width+1, func(protocol.AcquireOK) {}); err != nil {
		return err
	}
	for i := range width {
		if err := a.send(&protocol.Acquire{ID: a.next(), Name: fmt.Sprint("spoke:", i), Owner: 1, WaitMS: protocol.Forever}); err != nil {
			return err
		}
	}
	go a.readAll()
	return overConnections(n, func(i int, a *attacker) {
		go a.readAll()
		for {
			var requests []protocol.Request
			for range 16 {
				id := a.next()
				requests = append(requests, &protocol.Acquire{ID: id, Name: "hub", Owner: uint64(7 + i), WaitMS: protocol.Forever}, &protocol.Cancel{Target: id})
			}
			if a.send(requests...) != nil {
				return
			}
		}
	})
}

func attackList(n int) error {
	if err := holdMany(10000, 0); err != nil {
		return err
	}
	return overConnections(n, func(_ int, a *attacker) {
		go a.readAll()
		for {
			if a.send(&protocol.List{ID: a.next()}, &protocol.List{ID: a.next(), After: 5000}, &protocol.Info{ID: a.next(), Name: "many:7"}) != nil {
				return
			}
		}
	})
}

// attackCancel has one name with thousands of waiters of one owner, which come and go.
func attackCancel(n int) error {
	if err := holdMany(1, 0); err != nil {
		return err
	}
	return overConnections(4, func(_ int, a *attacker) {
		go a.readAll()
		first := a.id + 1
		for {
			if a.id-first < uint64(n) {
				_ = a.send(&protocol.Acquire{ID: a.next(), Name: "many:0", Owner: 1, NotReentrant: true, WaitMS: protocol.Forever})
				continue
			}
			var requests []protocol.Request
			for range 64 {
				requests = append(requests, &protocol.Cancel{Target: first}, &protocol.Acquire{ID: a.next(), Name: "many:0", Owner: 1, NotReentrant: true, WaitMS: protocol.Forever})
				first++
			}
			if a.send(requests...) != nil {
				return
			}
		}
	})
}

func attackDeaf(n int) error {
	if err := holdMany(10000, 0); err != nil {
		return err
	}
	return overConnections(n, func(_ int, a *attacker) {
		for {
			if a.send(&protocol.List{ID: a.next()}) != nil {
				return
			}
		}
	})
}

func attackConnect(n int) error {
	for range n {
		go func() {
			for {
				if a, err := newAttacker(); err == nil {
					_ = a.send(&protocol.Acquire{ID: a.next(), Name: "attack", WaitMS: 0})
					a.conn.Close()
				}
			}
		}()
	}
	ready()
	return nil
}

// holdMany takes locks and keeps them, with a max_hold if that is not 0.
func holdMany(n int, maxHold time.Duration) error {
	a, err := newAttacker()
	if err != nil {
		return err
	}
	const batch = 256
	for k := 0; k < n; k += batch {
		var acquires []protocol.Request
		for i := k; i < min(k+batch, n); i++ {
			acquires = append(acquires, &protocol.Acquire{ID: a.next(), Name: fmt.Sprint("many:", i), WaitMS: protocol.Forever, MaxHoldMS: maxHold.Milliseconds()})
		}
		if err := a.send(acquires...); err != nil {
			return err
		}
		if err := a.granted(len(acquires), func(protocol.AcquireOK) {}); err != nil {
			return err
		}
	}
	go a.readAll()
	return nil
}

func attackMaxHold(n int) error {
	begin := time.Now()
	a, err := newAttacker()
	if err != nil {
		return err
	}
	end := begin.Add(12 * time.Second)
	const batch = 256
	for k := 0; k < n; k += batch {
		var acquires []protocol.Request
		for i := k; i < min(k+batch, n); i++ {
			acquires = append(acquires, &protocol.Acquire{ID: a.next(), Name: fmt.Sprint("ends:", i), WaitMS: protocol.Forever, MaxHoldMS: max(1, time.Until(end).Milliseconds())})
		}
		if err := a.send(acquires...); err != nil {
			return err
		}
		if err := a.granted(len(acquires), func(protocol.AcquireOK) {}); err != nil {
			return err
		}
	}
	go a.readAll()
	<-time.After(time.Until(end) - time.Second)
	ready()
	return nil
}

func attackHold(n int) error {
	if err := holdMany(n, 0); err != nil {
		return err
	}
	ready()
	return nil
}

// attackCrowd takes every session, and every lock, that it gets. It reports how many.
func attackCrowd(int) error {
	var all []*attacker
	for {
		a, err := newAttacker()
		if err != nil {
			return err
		}
		if a.refused {
			break
		}
		all = append(all, a)
	}
	locks := int64(0)
	for {
		if err := all[0].send(&protocol.Acquire{ID: all[0].next(), Name: fmt.Sprint("crowd:", locks), WaitMS: protocol.Forever}); err != nil {
			return err
		}
		body, err := all[0].frames.Next()
		if err != nil {
			return err
		}
		var d protocol.ReplyDecoder
		if r, err := d.Decode(body); err != nil {
			return err
		} else if _, refused := r.(*protocol.Err); refused {
			break
		} else if _, granted := r.(*protocol.Answer); granted {
			locks++
		}
	}
	ready(int64(len(all)), locks)
	return nil
}

// ---- the test's side ----------------------------------------------------------

// startAttack starts a hostile process, as another user where that is possible. Its
// answer to a first command says that the attack is under way.
func startAttack(t testing.TB, d *daemon, kind string, size int) *worker {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	if os.Geteuid() == 0 {
		// The test binary lies in a directory of our own.
		text, err := os.ReadFile(exe)
		if err != nil {
			t.Fatal(err)
		}
		dir := shortDir(t)
		_ = os.Chmod(dir, 0o755)
		cmd.Path = filepath.Join(dir, "attack")
		if err := os.WriteFile(cmd.Path, text, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Env = append(os.Environ(), roleVar+"="+attackRole, attackKind+"="+kind, attackSize+"="+strconv.Itoa(size), "LOCKSIDECAR_SOCKET="+d.socket)
	return startWorker(t, cmd)
}

// attackedDaemon is a daemon whose socket every user may use.
func attackedDaemon(t testing.TB, r *redisServer, args ...string) *daemon {
	t.Helper()
	d := startDaemon(t, r.unixURL(), append([]string{"--socket-mode=0666"}, args...)...)
	if err := os.Chmod(filepath.Dir(d.socket), 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// pairsFor acquires and releases a lock for a while, and returns how long each pair took.
func pairsFor(t testing.TB, c *locksidecar.Client, d time.Duration) (took []int64) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		begin := time.Now()
		l, err := c.Lock(t.Context(), "innocent")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
		took = append(took, int64(time.Since(begin)))
	}
	slices.Sort(took)
	return took
}

// shortestTTL samples how long a lock still lives in Redis, until stopped.
func shortestTTL(t testing.TB, r *redisServer, name string) (stop func() time.Duration) {
	var end atomic.Bool
	var wg sync.WaitGroup
	shortest := time.Hour
	wg.Go(func() {
		every := time.NewTicker(5 * time.Millisecond)
		defer every.Stop()
		for !end.Load() {
			if ttl := r.PTTL(t.Context(), name).Val(); ttl < shortest {
				shortest = ttl
			}
			<-every.C
		}
	})
	return func() time.Duration {
		end.Store(true)
		wg.Wait()
		return shortest
	}
}

// Whatever a hostile process does, no other process loses a lock, and each gets answers.
func TestHostileProcessCostsNobodyALock(t *testing.T) {
	size := func(n int) int {
		if raceEnabled || testing.Short() {
			return min(n, 200) // the daemon is some ten times as slow
		}
		return min(n, 50_000)
	}
	for _, a := range attacks {
		if a.kind == "burn" || a.kind == "max_hold" {
			continue // no attack; and one that takes twelve seconds to prepare
		}
		t.Run(a.says, func(t *testing.T) {
			r := startRedis(t)
			d := attackedDaemon(t, r, "--lease=3s")
			c := dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			attack := startAttack(t, d, a.kind, size(a.size))
			attack.must(command{Do: a.kind})
			pairs := len(pairsFor(t, c, time.Second))
			attack.kill9()
			pairs += len(pairsFor(t, c, 300*time.Millisecond))
			select {
			case <-held.Done():
				t.Errorf("the lock is lost: %v", held.Err())
			default:
			}
			if err := held.Unlock(); err != nil {
				t.Error(err)
			}
			t.Logf("%d pairs", pairs)
			eventually(t, "what the attacker held is given back", func() bool {
				return len(r.Keys(t.Context(), "many:*").Val()) == 0
			})
		})
	}
}

// A user takes all sessions and locks that it gets. Others get some all the same, and root
// sees what is there, and ends it.
func TestOneUserLeavesRoomForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a process of another user")
	}
	r := startRedis(t)
	d := attackedDaemon(t, r, "--max-sessions=32", "--max-locks=64")
	got := startAttack(t, d, "crowd", 0).must(command{Do: "crowd"}).Waits
	if want := []int64{24, 48}; !slices.Equal(got, want) {
		t.Errorf("one user got %v sessions and locks, want %v: three quarters", got, want)
	}
	c := dial(t, d)
	if _, err := c.TryLock(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
	if got := d.run("ls"); got.code != 0 || !strings.Contains(got.stdout, "crowd:7") {
		t.Errorf("ls: exit code %d, %s %s", got.code, got.stdout, got.stderr)
	}
	if got := d.run("force-release", "crowd:7"); got.code != 0 {
		t.Errorf("force-release: exit code %d, %s", got.code, got.stderr)
	}
	says(t, d.log.String(), "client forced the release of a lock", "lock=crowd:7", "force-release crowd:7", "uid=0")
}

// What a hostile process costs its neighbours: time of a pair, lateness of a renewal,
// memory of the daemon.
func TestMeasureAttacks(t *testing.T) {
	measured(t)
	const lease = 3 * time.Second
	for _, a := range attacks {
		t.Run(a.says, func(t *testing.T) {
			r := startRedis(t)
			d := attackedDaemon(t, r, "--lease="+lease.String())
			c := dial(t, d)
			held, err := c.Lock(t.Context(), "held")
			if err != nil {
				t.Fatal(err)
			}
			quiet := pairsFor(t, c, 3*time.Second)
			attack := startAttack(t, d, a.kind, a.size)
			attack.must(command{Do: a.kind})
			stop := shortestTTL(t, r, "held")
			if a.kind == "hold" {
				attack.signal(syscall.SIGKILL)
			}
			under := pairsFor(t, c, 6*time.Second)
			late := lease - lease/3 - stop()
			memory := rss(t, d.pid())
			killed := time.Now()
			attack.kill9()
			pairsFor(t, c, time.Nanosecond)
			after := time.Since(killed)
			p := func(took []int64, q int) int64 { return took[len(took)*q/1000] }
			if err := held.Err(); err != nil {
				t.Errorf("the lock is lost: %v", err)
			}
			row(a.says, "quiet p50 %s p99 %s  under p50 %s (%.1f×) p99 %s (%.1f×) max %s; renewal at %.0f %% of the lease late; %d MiB; next pair after it %s",
				ms(p(quiet, 500)), ms(p(quiet, 990)), ms(p(under, 500)), float64(p(under, 500))/float64(p(quiet, 500)),
				ms(p(under, 990)), float64(p(under, 990))/float64(p(quiet, 990)), ms(under[len(under)-1]),
				100*late.Seconds()/lease.Seconds(), memory>>20, ms(int64(after)))
		})
	}
}

package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A hostile local user: a process that sends whatever the protocol allows, as fast as it
// can, over as many connections as it gets.

const (
	attackRole = "attack"
	attackKind = "LOCKSIDECAR_TEST_ATTACK"
	attackSize = "LOCKSIDECAR_TEST_ATTACK_SIZE"
	attackName = "LOCKSIDECAR_TEST_ATTACK_NAME"
	nobodyUID  = 65534
)

// An Attack is what a hostile process does.
type Attack struct {
	Kind        string
	Size        int // number of threads, connections, waiters or locks, by kind
	Description string
}

// AttackCrowd opens sessions and acquires locks until the daemon refuses more. Its numbers
// are how many of each it got.
var AttackCrowd = Attack{Kind: "crowd"}

// Attacks are all others. The first two are for comparison: they use the processors as
// attacks do, and leave the daemon alone.
var Attacks = []Attack{
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
	{"unread", 1000, "1,000 connections that never read"},
	{"connect", 64, "connections opened and closed"},
	{"max_hold", 100000, "100,000 locks that end at one moment"},
	{"hold", 262144, "262,144 locks, their holder is killed"},
}

// attacker is one connection of the hostile process.
type attacker struct {
	conn   net.Conn
	frames *protocol.Reader
	id     uint64

	refused bool // the daemon has refused its hello
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

// granted reads until n requests were answered, and calls f for each that was granted. Those that a
// policy refused are answered, too.
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
		if refusal, ok := r.(*protocol.Err); ok && refusal.ID != 0 {
			n--
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

// readAll reads and discards everything.
func (a *attacker) readAll() { _, _ = io.Copy(io.Discard, a.conn) }

func runAttack() int {
	size, _ := strconv.Atoi(os.Getenv(attackSize))
	run := map[string]func(int) error{
		"burn": burn, "ping": attackPing, "pairs": attackPairs, "fresh": attackFresh, "deadlock": attackDeadlock, "list": attackList,
		"name":   attackByName,
		"cancel": attackCancel, "unread": attackUnread, "connect": attackConnect, "max_hold": attackMaxHold, "hold": attackHold, "crowd": attackCrowd,
	}[os.Getenv(attackKind)]
	if err := run(size); err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		return 1
	}
	select {}
}

// ready answers the first command: the attack is in progress. numbers go to the test.
func ready(numbers ...int64) {
	var c Command
	if err := json.NewDecoder(os.Stdin).Decode(&c); err == nil {
		_ = json.NewEncoder(os.Stdout).Encode(Answer{N: c.N, Waits: numbers})
	}
}

// overConnections runs f on n connections at the same time.
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

// burn computes with n threads.
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

// attackDeadlock makes each request search a graph of owners that wait for each other.
func attackDeadlock(n int) error {
	const width = 300
	a, err := newAttacker()
	if err != nil {
		return err
	}
	// Owner 1 holds "hub" and waits for 300 locks, each of which another owner holds.
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

// attackCancel queues n waiters of one owner for one lock, and cancels and replaces them.
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

func attackUnread(n int) error {
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

// holdMany acquires n locks and keeps them, with a max_hold if that is not 0.
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

// StartAttack starts a hostile process, as another user if the test runs as root, and
// returns when the attack is in progress. numbers are what the attack reports, if anything.
func StartAttack(t testing.TB, d *Daemon, a Attack) (attacker *Worker, numbers []int64) {
	t.Helper()
	return startAttack(t, d, a)
}

func startAttack(t testing.TB, d *Daemon, a Attack, env ...string) (attacker *Worker, numbers []int64) {
	t.Helper()
	cmd := RoleCommand(t, d, attackRole)
	if os.Geteuid() == 0 {
		// Other users cannot enter the directory of the test binary.
		dir := ShortDir(t)
		_ = os.Chmod(dir, 0o755)
		own := filepath.Join(dir, "attack")
		if err := linkFile(cmd.Path, own); err != nil {
			t.Fatal(err)
		}
		cmd.Path = own
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.Env = append(append(cmd.Env, attackKind+"="+a.Kind, attackSize+"="+strconv.Itoa(a.Size)), env...)
	attacker = StartWorker(t, cmd)
	return attacker, attacker.Must(Command{Do: a.Kind}).Waits
}

// StartDaemonForAllUsers starts a daemon whose socket every user may use.
func StartDaemonForAllUsers(t testing.TB, r *Redis, args ...string) *Daemon {
	t.Helper()
	d := StartDaemon(t, r.UnixURL(), append([]string{"--socket-mode=0666"}, args...)...)
	if err := os.Chmod(filepath.Dir(d.Socket), 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

// TimePairs acquires and releases a lock for a while, at least once. It returns how long each
// pair took, in ns, sorted.
func TimePairs(t testing.TB, c *locksidecar.Client, d time.Duration) (took []int64) {
	t.Helper()
	for end := time.Now().Add(d); len(took) == 0 || time.Now().Before(end); {
		begin := time.Now()
		l, err := c.Lock(t.Context(), "neighbour")
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

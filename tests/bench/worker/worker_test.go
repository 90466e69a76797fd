package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// asWorker in the environment has the test binary be a worker.
const asWorker = "BENCH_WORKER"

// patience is how long a test waits for what must happen, on any machine.
const patience = 60 * time.Second

// programs is the directory with the servers that are built for the tests. They stay there, so that the
// Go command finds them up to date the next time.
var programs string

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		main()
	}
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flag.Parse()
	flag.Set("test.parallel", "6") // they wait
	os.Exit(m.Run())
}

// build builds the servers.
func build() error {
	var err error
	if programs, err = filepath.Abs("../../../bin/test/bench"); err != nil || !haveRedis() {
		return err
	}
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"../../../cmd/locksidecar", "../etcd"} {
		build := exec.Command("go", "build", "-o", filepath.Join(programs, filepath.Base(dir)))
		build.Dir = dir
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", dir, err, out)
		}
	}
	return nil
}

func haveRedis() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// lockers are the contenders that exclude each other.
var lockers = []string{"locksidecar", "redsync", "redsync-1ms", "redislock", "redislock-1ms", "rueidislock", "etcd"}

func TestDistinctLocks(t *testing.T) {
	t.Parallel()
	here := startServers(t)
	for _, contender := range lockers {
		t.Run(contender, func(t *testing.T) {
			here.pairs(t, spec{Contender: contender}, [][]string{{"a", "b"}, {"c"}}, func(all [][]pair) bool {
				return len(all[0]) > 0 && len(all[1]) > 0
			})
		})
	}
}

func TestContendedLock(t *testing.T) {
	t.Parallel()
	here := startServers(t)
	for _, contender := range lockers {
		t.Run(contender, func(t *testing.T) {
			here.pairs(t, spec{Contender: contender, WorkUS: 1000}, [][]string{{"a", "a"}, {"a"}}, func(all [][]pair) bool {
				merged := slices.Concat(all...)
				slices.SortFunc(merged, func(a, b pair) int { return cmp.Compare(a[granted], b[granted]) })
				for i := 1; i < len(merged); i++ {
					before, after := merged[i-1], merged[i]
					if before[leaving] == 0 {
						// Its process was stopped with the lock held.
						break
					}
					if after[granted] < before[leaving] {
						t.Errorf("granted at %d, but it was held until %d", after[granted], before[leaving])
					}
				}
				return len(merged) > 3
			})
		})
	}
}

func TestPermits(t *testing.T) {
	t.Parallel()
	here := startServers(t)
	here.pairs(t, spec{Contender: "locksidecar", WorkUS: 1000, Of: 2}, [][]string{{"a", "a"}, {"a"}}, func(all [][]pair) bool {
		merged := slices.Concat(all...)
		slices.SortFunc(merged, func(a, b pair) int { return cmp.Compare(a[granted], b[granted]) })
		together := 0
		for i := 1; i < len(merged); i++ {
			if merged[i-1][leaving] == 0 {
				break // its process was stopped with the permit held
			}
			if merged[i][granted] < merged[i-1][leaving] {
				together++
			}
			if i > 1 && merged[i-2][leaving] != 0 && merged[i][granted] < min(merged[i-1][leaving], merged[i-2][leaving]) {
				t.Errorf("three have two permits at %d", merged[i][granted])
			}
		}
		return together > 3
	})
}

func TestLimits(t *testing.T) {
	here := startServers(t)
	some := func(all [][]pair) bool { return len(all[0]) > 0 }
	t.Run("raw-evalsha", func(t *testing.T) {
		here.pairs(t, spec{Contender: "raw-evalsha"}, [][]string{{"a", "b", "c"}}, some)
	})
	t.Run("unix-echo", func(t *testing.T) {
		server := here.start(t, spec{Contender: "unix-echo-server", Mode: "pairs"})
		here.pairs(t, spec{Contender: "unix-echo"}, [][]string{{"a", "b"}, {"c"}}, some)
		server.stop(t)
	})
}

func TestHeldUntilTheProcessEnds(t *testing.T) {
	t.Parallel()
	here := startServers(t)
	for _, contender := range lockers {
		if strings.HasSuffix(contender, "-1ms") {
			continue // holds as its other self does
		}
		t.Run(contender, func(t *testing.T) {
			t.Parallel()
			// redsync takes an attempt that lasts for a twentieth of this for failed,
			// and what it then releases may be what the next attempt got.
			const lease = 4 * time.Second
			prefix := "held by " + contender + ":"
			holder := here.start(t, spec{Contender: contender, Mode: "hold", Prefix: prefix, Count: 10, LeaseMS: lease.Milliseconds()})
			holder.tell(t, "go")
			if held := holder.heard(t, "held"); held.Count != 10 {
				t.Fatalf("%d locks are held, want 10", held.Count)
			}
			wait := func() *process {
				w := here.start(t, spec{Contender: contender, Mode: "wait", Names: []string{prefix + "9"}, LeaseMS: lease.Milliseconds()})
				w.tell(t, "go")
				return w
			}
			waiter := wait()
			// Only renewal keeps the lock for so long.
			time.Sleep(lease + lease/4)
			killed := monotonic()
			holder.cmd.Process.Kill()
			grant, ok := waiter.hears(t, "granted", patience/2)
			if !ok && contender == "rueidislock" {
				// On a busy machine its waiter now and then misses that the key has expired, and
				// never asks again. A new one finds the lock free.
				waiter.cmd.Process.Kill()
				waiter = wait()
			}
			if !ok {
				grant = waiter.heard(t, "granted")
			}
			if grant.At < killed {
				t.Errorf("granted %v before the holder was killed", time.Duration(killed-grant.At))
			}
			waiter.stop(t)
		})
	}
}

func TestWrongSpecs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ spec, msg string }{
		{`nonsense`, "the spec, line 1"},
		{`{"contender":"redsync","mode":"pairs"}`, "lease_ms"},
		{`{"contender":"nobody","mode":"pairs","lease_ms":1}`, `no contender "nobody"`},
		{`{"contender":"redsync","mode":"dance","lease_ms":1}`, `mode "dance"`},
		{`{"contender":"raw-evalsha","mode":"hold","lease_ms":1}`, "raw-evalsha"},
		{`{"contender":"redsync","mode":"pairs","lease_ms":1,"of":2}`, `"redsync" has no permits`},
		{`{"contender":"unix-echo","mode":"pairs","lease_ms":1,"names":["a"],"socket":"/nonexistent"}`, "/nonexistent"},
	} {
		p := launch(t)
		p.tell(t, c.spec)
		if e := p.heard(t, "error"); !strings.Contains(e.Msg, c.msg) {
			t.Errorf("%s: the error is %q, want %q in it", c.spec, e.Msg, c.msg)
		}
		if err := p.cmd.Wait(); err == nil {
			t.Errorf("%s: the worker ended well", c.spec)
		}
	}
}

// A pair is the times of a record whose lock was granted.
type pair [4]int64

// servers is what contenders need.
type servers struct {
	redis, socket, etcd string
	runs                int
}

// fresh names are those of no run before: a worker that is stopped leaves its locks
// to their leases.
func (s *servers) fresh(names []string) []string {
	fresh := make([]string, len(names))
	for i, n := range names {
		fresh[i] = fmt.Sprint("run ", s.runs, ": ", n)
	}
	return fresh
}

// pairs has a process for each list of names take locks for a while, and hands
// what they were granted to enough; if that says no, for a longer while.
func (s *servers) pairs(t *testing.T, sp spec, names [][]string, enough func([][]pair) bool) {
	t.Helper()
	for window := 200 * time.Millisecond; ; window *= 4 {
		var processes []*process
		for _, n := range names {
			sp.Mode, sp.Names = "pairs", s.fresh(n)
			processes = append(processes, s.start(t, sp))
		}
		for _, p := range processes {
			p.tell(t, "go")
		}
		time.Sleep(window)
		// All are told before any is awaited: one that ends frees what it held.
		for _, p := range processes {
			p.tell(t, "stop")
		}
		var all [][]pair
		for _, p := range processes {
			all = append(all, p.records(t))
		}
		s.runs++
		if enough(all) {
			total := 0
			for _, pairs := range all {
				total += len(pairs)
			}
			t.Logf("%.0f pairs/s", float64(total)/window.Seconds())
			return
		}
		if t.Failed() || window > patience {
			t.Fatalf("not enough was granted within %v: %v", window, all)
		}
	}
}

// start starts a worker and waits until it is ready.
func (s *servers) start(t *testing.T, sp spec) *process {
	t.Helper()
	sp.Redis, sp.Socket, sp.Etcd = s.redis, s.socket, s.etcd
	sp.Records = filepath.Join(t.TempDir(), "records")
	sp.LeaseMS = cmp.Or(sp.LeaseMS, 30_000)
	p := launch(t)
	p.spec = sp
	line, err := json.Marshal(sp)
	if err != nil {
		t.Fatal(err)
	}
	p.tell(t, string(line))
	p.heard(t, "ready")
	return p
}

// A process is a worker.
type process struct {
	spec spec
	cmd  *exec.Cmd
	in   io.Writer
	out  chan event
}

func launch(t *testing.T) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), out: make(chan event, 10)}
	p.cmd.Env = append(os.Environ(), asWorker+"=1")
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	lines := output(t, p.cmd)
	go func() {
		defer close(p.out)
		for line := range lines {
			var e event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				e = event{Event: line}
			}
			p.out <- e
		}
	}()
	return p
}

func (p *process) tell(t *testing.T, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

// heard returns the next event, which must be of that name.
func (p *process) heard(t *testing.T, name string) event {
	t.Helper()
	e, ok := p.hears(t, name, patience)
	if !ok {
		t.Fatalf("no %q within %v", name, patience)
	}
	return e
}

// hears returns the next event, which must be of that name, if there is one in time.
func (p *process) hears(t *testing.T, name string, within time.Duration) (e event, ok bool) {
	t.Helper()
	select {
	case e, ok = <-p.out:
		if !ok || e.Event != name {
			t.Fatalf("the worker says %+v, want %q", e, name)
		}
		return e, true
	case <-time.After(within):
		return event{}, false
	}
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	p.tell(t, "stop")
	p.ended(t)
}

// ended waits for the end after a stop.
func (p *process) ended(t *testing.T) {
	t.Helper()
	if e := p.heard(t, "done"); e.Errors == nil || *e.Errors != 0 {
		t.Errorf("the worker ended with %s", e.FirstError)
	}
	for range p.out { // to the end, as Wait wants it
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// records waits for the end after a stop and returns what was granted.
func (p *process) records(t *testing.T) []pair {
	t.Helper()
	p.ended(t)
	b, err := os.ReadFile(p.spec.Records)
	if err != nil {
		t.Fatal(err)
	}
	var pairs []pair
	for _, r := range parseRecords(t, b) {
		if pair := pair(r); pair[granted] != 0 {
			pairs = append(pairs, pair)
			if !slices.IsSorted(pair[:occurred(r)]) {
				t.Errorf("the times of a pair are %v", r)
			}
		}
	}
	return pairs
}

// startServers starts a Redis, an etcd and a sidecar that end with the test.
func startServers(t *testing.T) *servers {
	t.Helper()
	if !haveRedis() {
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	dir, err := os.MkdirTemp("", "bench") // not t.TempDir: the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &servers{socket: filepath.Join(dir, "s.sock")}

	port := strconv.Itoa(harness.FreePort(t))
	s.redis = "redis://127.0.0.1:" + port
	redis := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	await(t, output(t, redis), "Ready to accept")

	sidecar := exec.Command(filepath.Join(programs, "locksidecar"), "serve", "--socket", s.socket, "--state", "none")
	sidecar.Env = append(os.Environ(), "LOCKSIDECAR_REDIS="+s.redis)
	await(t, output(t, sidecar), "serving")

	etcd := exec.Command(filepath.Join(programs, "etcd"), "-dir", filepath.Join(dir, "etcd"))
	if _, err := etcd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	var ready struct{ Client string }
	if err := json.Unmarshal([]byte(await(t, output(t, etcd), "ready")), &ready); err != nil {
		t.Fatal(err)
	}
	s.etcd = ready.Client
	return s
}

// output starts a process, which ends with the test, and returns the lines it
// prints.
func output(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = cmd.Stdout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case lines <- scan.Text():
			default: // nobody is interested any more
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		cmd.Wait()
	})
	return lines
}

// await returns the first line with a text in it.
func await(t *testing.T, lines <-chan string, text string) string {
	t.Helper()
	var said []string
	for timeout := time.After(patience); ; {
		select {
		case line, ok := <-lines:
			if strings.Contains(line, text) {
				return line
			}
			if said = append(said, line); !ok {
				t.Fatalf("it ended before it said %q:\n%s", text, strings.Join(said, "\n"))
			}
		case <-timeout:
			t.Fatalf("no %q within %v:\n%s", text, patience, strings.Join(said, "\n"))
		}
	}
}

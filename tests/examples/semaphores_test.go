package examples

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A language is one in which the examples of semaphores are written.
type language struct {
	name string
	// command returns how an example is run: partner, or buildfarm.
	command func(t *testing.T, example string) []string
}

var (
	inGo = language{"Go", func(t *testing.T, example string) []string {
		return []string{harness.Build(t, example, "./examples/semaphores/"+example)}
	}}
	inPython = language{"Python", func(t *testing.T, example string) []string {
		return []string{pythonWithHTTPX(t), filepath.Join(harness.Root(), "examples", "semaphores", example, example+".py")}
	}}
)

// importHTTPX is tried once: each start of Python takes a while.
var importHTTPX struct {
	sync.Once
	err error
}

// pythonWithHTTPX is harness.Python with what partner.py imports.
func pythonWithHTTPX(t *testing.T) string {
	t.Helper()
	python := harness.Python(t)
	importHTTPX.Do(func() { importHTTPX.err = exec.Command(python, "-c", "import httpx").Run() })
	if importHTTPX.err != nil {
		why := fmt.Sprintf("%s cannot import httpx (%v): run `make .venv/.examples`", python, importHTTPX.err)
		if os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return python
}

// start starts an example on a host, with a variable of its environment.
func (l language) start(t *testing.T, host *harness.Daemon, example, variable string, args []string) *harness.RunProcess {
	t.Helper()
	command := append([]string{variable}, l.command(t, example)...)
	return harness.StartProcess(t, host, "env", append(command, args...)...)
}

// A counter counts, outside of the programs, what they do at one time. A piece of work goes on until
// the test ends it, so no count depends on how fast a program is.
type counter struct {
	t *testing.T

	mu      sync.Mutex
	limit   int // work above it is refused, and fails the test
	inUse   int
	most    int // that was in use at one time
	working []*work
	begun   map[string]int // how often, by name
}

type work struct {
	name  string
	takes int           // of the limit
	end   chan struct{} // closed when the test ends it
}

func newCounter(t *testing.T, limit int) *counter {
	return &counter{t: t, limit: limit, begun: make(map[string]int)}
}

// begin returns nil if there is more work at one time than the limit allows.
func (c *counter) begin(name string, takes int) *work {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inUse+takes > c.limit {
		c.t.Errorf("%s takes %d while %d of %d are in use", name, takes, c.inUse, c.limit)
		return nil
	}
	w := &work{name, takes, make(chan struct{})}
	c.inUse += takes
	c.most = max(c.most, c.inUse)
	c.working = append(c.working, w)
	c.begun[name]++
	return w
}

// forget counts work as ended that its program still waits for.
func (c *counter) forget(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.working, w); i >= 0 {
		c.working = slices.Delete(c.working, i, i+1)
		c.inUse -= w.takes
	}
}

// end ends work. It is not counted any more before its program knows.
func (c *counter) end(w *work) {
	c.forget(w)
	close(w.end)
}

// now returns the work that goes on, in the order in which it began, and how much it takes.
func (c *counter) now() (working []*work, inUse int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.working), c.inUse
}

func (c *counter) setLimit(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
}

// await waits until so much is in use at least, and returns the work.
func (c *counter) await(atLeast int) (working []*work) {
	c.t.Helper()
	harness.Eventually(c.t, fmt.Sprintf("%d are in use", atLeast), func() bool {
		var inUse int
		working, inUse = c.now()
		return inUse >= atLeast
	})
	return working
}

// endOldest ends n pieces of work, one after the other. Before each, so much is in use at least.
func (c *counter) endOldest(n, atLeast int) {
	c.t.Helper()
	for range n {
		c.end(c.await(atLeast)[0])
	}
}

// endUntilExit ends all work until the programs have ended, and checks that they ended without an error.
func (c *counter) endUntilExit(programs ...*harness.RunProcess) {
	c.t.Helper()
	for _, p := range programs {
		harness.Eventually(c.t, "the programs end", func() bool {
			working, _ := c.now()
			for _, w := range working {
				c.end(w)
			}
			return !harness.IsAlive(p.PID())
		})
		if code := p.Wait(); code != 0 {
			c.t.Errorf("exit code %d: %s", code, p.Output.String())
		}
	}
}

// startPartner starts a stand-in for the partner, which serves as many calls as the test lets it.
func startPartner(t *testing.T, limit int) (c *counter, variable string) {
	c = newCounter(t, limit)
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		orders := request.FormValue("ids")
		call := c.begin(orders, sizeOf(orders))
		if call == nil {
			http.Error(response, "too many calls", http.StatusTooManyRequests)
			return
		}
		select {
		case <-call.end:
			fmt.Fprint(response, "shipped")
		case <-request.Context().Done():
			c.forget(call)
		}
	}))
	t.Cleanup(server.Close) // after the end of the workers
	return c, "PARTNER_URL=" + server.URL
}

// sizeOf returns how many permits a call takes.
func sizeOf(orders string) int {
	if strings.Contains(orders, ",") {
		return 2
	}
	return 1
}

// callsOf returns n calls of a worker, every third of them a bulk call.
func callsOf(worker string, n int) (calls []string) {
	for i := range n {
		call := fmt.Sprintf("%s-%d", worker, i)
		if i%3 == 0 {
			call += "," + call + "-also"
		}
		calls = append(calls, call)
	}
	return calls
}

// An operator is that of two hosts, who changes their settings.
type operator struct {
	t        *testing.T
	redis    *harness.Redis
	settings string // file of both hosts
	hosts    []*harness.Daemon
	clients  []*locksidecar.Client
}

func startHosts(t *testing.T) *operator {
	t.Helper()
	o := &operator{t: t, redis: harness.StartRedis(t), settings: filepath.Join(t.TempDir(), "locksidecar.toml")}
	o.write(o.settings, "")
	if err := os.Mkdir(filepath.Dir(o.night()), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := harness.StartDaemon(t, o.redis.UnixURL(), harness.LongLease, "--config="+o.settings)
		o.hosts = append(o.hosts, d)
		o.clients = append(o.clients, harness.Dial(t, d))
	}
	return o
}

func (o *operator) night() string {
	return filepath.Join(filepath.Dir(o.settings), "conf.d", "night.toml")
}

func (o *operator) write(path, text string) {
	o.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// reload does on each host what systemctl reload does there (deploy/locksidecar.service): it checks the
// settings and ends the daemon, and systemd starts the next one.
func (o *operator) reload() {
	o.t.Helper()
	for _, d := range o.hosts {
		if got := d.Run("serve", "--check", "--redis="+o.redis.UnixURL(), "--config="+o.settings); got.Code != 0 {
			o.t.Fatal(got.Stderr)
		}
		d.Terminate()
		d.Start(harness.LongLease, "--config="+o.settings)
		d.AwaitSocket()
		d.AwaitRedis("ok")
	}
}

// lower gives partner-api so many permits, for the user of the test, which may be that of the daemon.
func (o *operator) lower(capacity int) {
	o.t.Helper()
	o.write(o.night(), fmt.Sprintf(`
[[policy]]
name = "partner-at-night"
users = ["%d"]
names = ["partner-api"]
capacity = %d
`, os.Geteuid(), capacity))
	o.reload()
}

func (o *operator) raise() {
	o.t.Helper()
	if err := os.Remove(o.night()); err != nil {
		o.t.Fatal(err)
	}
	o.reload()
}

// row returns what a host knows of a semaphore.
func (o *operator) row(host int, name string) locksidecar.LockInfo {
	o.t.Helper()
	row, _, err := o.clients[host].Info(o.t.Context(), name)
	if err != nil {
		o.t.Fatal(err)
	}
	return row
}

func (o *operator) awaitWaiting(host, n int, name string) {
	o.t.Helper()
	harness.Eventually(o.t, fmt.Sprintf("%d requests of host %d wait for %s", n, host, name), func() bool {
		return o.row(host, name).Waiting == n
	})
}

// Workers in both languages call a partner from two hosts. It never serves more calls than there are
// permits: also after a worker is killed in the middle of its calls, and while an operator lowers the
// permits and raises them again. All work is done, and no worker notices a reload.
//
// Shows docs/kinds.md: At most N.
// Shows docs/kinds.md: Permits cannot leak.
// Shows docs/kinds.md: Lower it at once.
func TestWorkersOfAPartnerNeverCallItMoreOftenThanPermitted(t *testing.T) {
	t.Parallel()
	for _, victim := range []language{inGo, inPython} {
		t.Run(victim.name+"WorkerIsKilled", func(t *testing.T) { t.Parallel(); testPartner(t, victim) })
	}
}

func testPartner(t *testing.T, ofVictim language) {
	o := startHosts(t)
	partner, variable := startPartner(t, 10)

	// The first worker has all permits, and more calls that wait.
	first := []string{"a,a", "b,b", "c,c", "d,d", "e,e", "f,f"}
	victim := ofVictim.start(t, o.hosts[0], "partner", variable, first)
	killed := partner.await(10)
	o.awaitWaiting(0, 1, "partner-api")

	var workers []*harness.RunProcess
	var calls []string
	for i, d := range o.hosts {
		for _, l := range []language{inGo, inPython} {
			own := callsOf(fmt.Sprintf("%d%s", i, l.name), 15)
			workers = append(workers, l.start(t, d, "partner", variable, own))
			calls = append(calls, own...)
		}
	}
	o.awaitWaiting(0, 31, "partner-api")
	o.awaitWaiting(1, 30, "partner-api")

	// The partner is done with its calls, and the worker dies before it has the answers: its permits
	// come back, for calls of others. Those of a worker that is started in its place wait.
	for _, call := range killed {
		partner.forget(call)
	}
	victim.Signal(syscall.SIGKILL)
	victim.Wait()
	partner.await(9)
	workers = append(workers, ofVictim.start(t, o.hosts[0], "partner", variable, first))
	calls = append(calls, first...)
	partner.endOldest(12, 9)

	// Calls that are served go on with their permits. So many are held that no call is granted after the
	// reload, and all that were granted before have reached the partner when these numbers are the same.
	partner.await(9)
	o.lower(3)
	harness.Eventually(t, "the partner serves all that hold permits", func() bool {
		_, inUse := partner.now()
		return o.row(0, "partner-api").Permits+o.row(1, "partner-api").Permits == inUse
	})
	partner.setLimit(3)
	partner.endOldest(18, 2)
	partner.await(2)

	partner.setLimit(10)
	o.raise()
	partner.await(9)
	partner.endUntilExit(workers...)

	if partner.most != 10 {
		t.Errorf("at most %d calls were served at one time, want 10", partner.most)
	}
	var output string
	for _, w := range workers {
		output += w.Output.String()
	}
	for _, call := range calls {
		if n := strings.Count(output, call+": shipped\n"); n != 1 {
			t.Errorf("the answer to %s was printed %d times:\n%s", call, n, output)
		}
	}
	if strings.Contains(output, "again") {
		t.Errorf("a worker had an error:\n%s", output)
	}
	for _, call := range slices.Sorted(maps.Keys(partner.begun)) {
		want := 1
		if slices.ContainsFunc(killed, func(w *work) bool { return w.name == call }) {
			want = 2
		}
		if n := partner.begun[call]; n != want {
			t.Errorf("%s was called %d times, want %d", call, n, want)
		}
	}
}

// A call whose permits are lost ends, and is made again.
func TestCallOfAPartnerWhosePermitsAreLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	for _, l := range []language{inGo, inPython} {
		t.Run(l.name, func(t *testing.T) {
			partner, variable := startPartner(t, 4)
			worker := l.start(t, d, "partner", variable, []string{"a,a"})
			lost := partner.await(2)[0]
			if got := d.Run("force-release", "partner-api"); got.Code != 0 {
				t.Fatal(got.Stderr)
			}
			harness.Eventually(t, "the call ends, and another one begins", func() bool {
				working, inUse := partner.now()
				return inUse == 2 && working[0] != lost
			})
			partner.endUntilExit(worker)
			harness.CheckContains(t, worker.Output.String(), "a,a: shipped", "lost", "the call is made again")
		})
	}
}

// startFarm starts what counts builds, and returns the PATH with a program make that reports to it.
func startFarm(t *testing.T, limit int) (c *counter, variable string) {
	t.Helper()
	c = newCounter(t, limit)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var builds sync.WaitGroup
	builds.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			builds.Go(func() { c.count(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); builds.Wait() }) // after the end of the builders
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/%d\necho \"$@\" >&3\nread -r <&3\n", l.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(filepath.Join(dir, "make"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return c, "PATH=" + dir + ":" + os.Getenv("PATH")
}

// count counts one build, until the test ends it or make has ended.
func (c *counter) count(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	var jobs int
	var target string
	if _, err := fmt.Fscanf(in, "-j%d %s\n", &jobs, &target); err != nil {
		c.t.Errorf("make: %v", err)
		return
	}
	build := c.begin(target, jobs)
	if build == nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		in.ReadByte() // make sends nothing more
		close(ended)
	}()
	select {
	case <-build.end:
		fmt.Fprintln(conn)
		<-ended
	case <-ended:
		c.forget(build)
	}
}

// While small builds have all slots, a large one begins to wait, and then more small ones on each host.
// Exactly the slots that it needs become free: it gets them, so no later build has overtaken it.
//
// Shows docs/kinds.md: In order, also large requests.
func TestLargeBuildIsNotOvertakenBySmallOnes(t *testing.T) {
	t.Parallel()
	for _, languages := range [][2]language{{inGo, inPython}, {inPython, inGo}} {
		t.Run("LargeIn"+languages[1].name, func(t *testing.T) {
			t.Parallel()
			o := startHosts(t)
			farm, variable := startFarm(t, 8)
			var builders []*harness.RunProcess
			build := func(host int, targets ...string) {
				builders = append(builders, languages[host].start(t, o.hosts[host], "buildfarm", variable, targets))
			}
			build(0, "a0", "a1", "a2", "a3")
			build(1, "b0", "b1", "b2", "b3")
			farm.await(8)
			build(1, "kernel:4")
			awaitQueue(t, o, 1)
			build(0, "a4", "a5", "a6", "a7", "a8", "a9")
			build(1, "b4", "b5", "b6", "b7", "b8", "b9")
			awaitQueue(t, o, 2)
			o.awaitWaiting(0, 6, "build-slots")
			o.awaitWaiting(1, 7, "build-slots")

			small, _ := farm.now()
			for _, w := range small[:4] {
				farm.end(w)
			}
			harness.Eventually(t, "the large build begins", func() bool {
				working, inUse := farm.now()
				return inUse == 8 && working[len(working)-1].name == "kernel"
			})
			o.awaitWaiting(0, 6, "build-slots")
			o.awaitWaiting(1, 6, "build-slots")

			farm.endUntilExit(builders...)
			if farm.most != 8 || len(farm.begun) != 21 {
				t.Errorf("%d builds used at most %d slots at one time, want 21 and 8", len(farm.begun), farm.most)
			}
		})
	}
}

// awaitQueue waits until so many hosts wait in Redis for slots.
func awaitQueue(t *testing.T, o *operator, hosts int) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("%d hosts wait in Redis", hosts), func() bool {
		who, err := o.clients[0].Who(t.Context(), "build-slots")
		if err != nil {
			t.Fatal(err)
		}
		return who.Queued == hosts
	})
}

// A build whose slots are lost ends, and so do all builds of a builder that is terminated.
func TestBuildEndsWithItsSlots(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	for _, l := range []language{inGo, inPython} {
		t.Run(l.name, func(t *testing.T) {
			farm, variable := startFarm(t, 8)
			endsWith := func(b *harness.RunProcess) {
				t.Helper()
				harness.Eventually(t, "the builds end", func() bool { _, inUse := farm.now(); return inUse == 0 })
				if code := b.Wait(); code != 1 {
					t.Errorf("exit code %d: %s", code, b.Output.String())
				}
			}
			builder := l.start(t, d, "buildfarm", variable, []string{"kernel:4"})
			farm.await(4)
			if got := d.Run("force-release", "build-slots"); got.Code != 0 {
				t.Fatal(got.Stderr)
			}
			endsWith(builder)
			harness.CheckContains(t, builder.Output.String(), "kernel", "lost")

			builder = l.start(t, d, "buildfarm", variable, []string{"kernel:4", "browser:4"})
			farm.await(8)
			builder.Signal(syscall.SIGTERM)
			endsWith(builder)
		})
	}
}

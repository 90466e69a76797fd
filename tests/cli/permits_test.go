package cli

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Commands of all hosts together run with as many permits as the semaphore has. Those of a run that ends, or
// is killed, are free for the next one.
func TestRunsOfAllHostsShareThePermits(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	const script = `echo "$LOCKSIDECAR_NAME has $LOCKSIDECAR_PERMITS, token $LOCKSIDECAR_TOKEN"; read -r _; exit 7`
	two := harness.StartRun(t, d7, "api", script, "--permits=2", "--of=3")
	two.AwaitOutput("api has 2, token ")
	one := harness.StartRun(t, d1, "api", script, "--of=3")
	one.AwaitOutput("api has 1, token ")
	for _, d := range []*harness.Daemon{d7, d1} {
		got := d.Run("run", "--wait=0", "--of=3", "api", "--", "echo", "must not run")
		if got.Code != 75 || got.Stdout != "" {
			t.Errorf("%+v", got)
		}
		harness.CheckContains(t, got.Stderr, `cannot get 1 of the 3 permits of "api" now; locksidecar who api shows who has them`)
	}
	next := harness.StartRun(t, d1, "api", script, "--permits=2", "--of=3")
	harness.Eventually(t, "the next one waits", func() bool { return harness.Waiters(t, d1, "api") == 1 })
	two.Write("\n")
	if code := two.Wait(); code != 7 {
		t.Errorf("exit code %d: %s", code, two.Output.String())
	}
	next.AwaitOutput("api has 2, token ")
	one.Signal(syscall.SIGKILL)
	next.Signal(syscall.SIGKILL)
	all := harness.StartRun(t, d7, "api", script, "--permits=3", "--of=3")
	all.AwaitOutput("api has 3, token ")
	all.Write("\n")
	all.Wait()
}

// Operators see on each host how many permits are free, who has the others, and what the hosts that wait want.
func TestOperatorsSeeWhoHasThePermits(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	for _, d := range []*harness.Daemon{d7, d1} {
		awaitHosts(t, d, 2)
	}
	const script = `echo "ready"; read -r _`
	start := func(d *harness.Daemon, permits int) *harness.RunProcess {
		run := harness.StartRun(t, d, "api", script, fmt.Sprint("--permits=", permits), "--of=8")
		run.AwaitOutput("ready")
		return run
	}
	two, one, other := start(d7, 2), start(d7, 1), start(d1, 3)
	waiter := harness.StartRun(t, d1, "api", script, "--permits=7", "--of=8")
	harness.Eventually(t, "the next one waits", func() bool { return harness.Waiters(t, d1, "api") == 1 })

	type owner struct {
		Host    string `json:"host"`
		Permits int    `json:"permits"`
		Holds   int    `json:"holds"`
		Holders []struct {
			Hold    uint64 `json:"hold"`
			Permits int    `json:"permits"`
			PID     int    `json:"pid"`
		} `json:"holders"`
	}
	var row struct {
		Key     string  `json:"key"`
		Permits int     `json:"permits"`
		Of      int     `json:"of"`
		Free    *int    `json:"free"`
		Owners  []owner `json:"owners"`
		Queue   []owner `json:"queue"`
	}
	hosts := make(map[string]owner)
	harness.Eventually(t, "the host that waits is in the queue, and both hosts answer", func() bool {
		got := d1.Run("who", "--json", "api")
		row.Queue, row.Owners = nil, nil
		decode(t, got.Stdout, &row)
		for _, o := range row.Owners {
			hosts[o.Host] = o
		}
		return got.Code == 0 && len(row.Queue) == 1 && len(hosts["db-7"].Holders) == 2
	})
	if row.Key != "permits" || row.Permits != 6 || row.Of != 8 || row.Free == nil || *row.Free != 2 || row.Queue[0].Permits != 7 || row.Queue[0].Host != "web-1" {
		t.Errorf("who --json shows %+v", row)
	}
	of7, of1 := hosts["db-7"], hosts["web-1"]
	if of7.Permits != 3 || of7.Holds != 2 || of7.Holders[0].PID != two.PID() || of7.Holders[0].Permits != 2 || of1.Permits != 3 || len(of1.Holders) != 1 || of1.Holders[0].PID != other.PID() {
		t.Errorf("who --json shows the owners %+v", hosts)
	}
	var text string
	harness.Eventually(t, "db-7 answers web-1", func() bool {
		text = d1.Run("who", "api").Stdout
		return strings.Contains(text, fmt.Sprintf(": 1 permit, pid %d, user ", one.PID()))
	})
	harness.CheckContains(t, text, "STATE   a semaphore: 6 of 8 permits held, 2 free\n", "HELD    3 on host db-7 (sidecar ", "HELD    3 on this host, web-1 (sidecar ",
		fmt.Sprintf("hold %d: 2 permits, pid %d, user ", of7.Holders[0].Hold, two.PID()), fmt.Sprintf("permits, pid %d, user ", other.PID()),
		fmt.Sprintf("WAITING here: pid %d, user ", waiter.PID()), "QUEUE   1. host web-1, for ", ", wants 7\n")

	harness.CheckContains(t, d7.Run("ls").Stdout, "3 of 8", strconv.Itoa(two.PID()), "has 2, +1 more: ")
	harness.CheckContains(t, d1.Run("ls").Stdout, "3 of 8", strconv.Itoa(other.PID()), "has 3: ", "wants 7: ")
	harness.CheckContains(t, d7.Run("top").Stdout, "3 of 8", "has 2, +1 more: ")
	harness.CheckContains(t, d1.Run("status").Stdout, `"api" is a semaphore, of which processes of this host have 3 of 8; the oldest holder, for `)
	var shares []struct {
		PID  int `json:"pid"`
		Held int `json:"held"`
	}
	decode(t, d7.Run("ls", "--by=process", "--json").Stdout, &shares)
	if len(shares) != 2 || shares[0].Held != 1 || shares[1].Held != 1 || shares[0].PID == shares[1].PID {
		t.Errorf("ls --by process shows %+v", shares)
	}

	d7.Suspend()
	harness.CheckContains(t, d1.Run("who", "api").Stdout, "6 of 8 permits held, 2 free", "HELD    3 on host db-7 (sidecar ", "); by which processes is not known\n", "TROUBLE the daemon of host db-7 did not answer")
	d7.Signal(syscall.SIGCONT)
	other.Write("\n")
	other.Wait()
	two.Write("\n")
	two.Wait()
	waiter.AwaitOutput("ready")
	harness.CheckContains(t, d1.Run("events", "api").Stdout, "api  7 permits to pid "+strconv.Itoa(waiter.PID()))
}

// When the permits are lost, run ends its command.
func TestRunEndsItsCommandWhenItsPermitsAreLost(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	run := harness.StartRun(t, d, "api", `echo ready; sleep 600`, "--permits=2", "--of=3")
	run.AwaitOutput("ready")
	if got := d.Run("force-release", "api"); got.Code != 0 || !strings.HasPrefix(got.Stdout, "ended hold ") {
		t.Fatalf("%+v", got)
	}
	if code := run.Wait(); code != 79 {
		t.Errorf("exit code %d, not 79", code)
	}
	harness.CheckContains(t, run.Output.String(), `the hold of 2 of the permits of "api" is lost: an operator ended it; other clients may have them; ending the command`)
}

// A lock for scripts may be permits. When it has ended, another host finds them free.
func TestLockHasReleasedThePermitsWhenItEnds(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	l := harness.StartProcess(t, d7, harness.Program(t), "lock", "--permits=3", "--of=3", "api")
	if token := strings.TrimSpace(l.AwaitOutput("\n")); token != fmt.Sprint(harness.Info(t, d7, "api").Token) {
		t.Errorf("printed %q; the token is %d", token, harness.Info(t, d7, "api").Token)
	}
	if got := d1.Run("lock", "--wait=0", "--of=3", "api"); got.Code != 75 {
		t.Errorf("%+v", got)
	}
	l.CloseStdin()
	if code := l.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, l.Output.String())
	}
	if got := d1.Run("run", "--wait=0", "--of=3", "api", "--", "true"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
}

// force-release ends one hold of a semaphore, or all, here or on another host.
func TestForceReleaseEndsOneHoldOfASemaphoreOrAll(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t, "--other-hosts=force-release")
	sem := harness.Dial(t, d7).Semaphore("api", 5)
	permits := make([]*locksidecar.Permit, 5)
	for i := range permits {
		p, err := sem.Acquire(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		permits[i] = p
	}
	holders := harness.Info(t, d7, "api").Holders
	if len(holders) != 5 {
		t.Fatalf("%+v", holders)
	}
	wantLost := func(lost ...int) {
		t.Helper()
		for _, i := range lost {
			<-permits[i].Done()
		}
		n := 0
		for _, p := range permits {
			if p.Err() != nil {
				n++
			}
		}
		if n != len(lost) {
			t.Errorf("%d holds are lost, not %d", n, len(lost))
		}
	}
	here := fmt.Sprint("--hold=", holders[1].Hold)
	if got := d7.Run("force-release", here, "api"); got.Code != 0 || got.Stdout != fmt.Sprintf("ended hold %d of \"api\"\n", holders[1].Hold) {
		t.Errorf("%+v", got)
	}
	wantLost(1)
	if got := d7.Run("force-release", here, "api"); got.Code != 1 {
		t.Errorf("%+v", got)
	}
	there := fmt.Sprint("--hold=", holders[3].Hold)
	if got := d1.Run("force-release", "--host=db-7", there, "api"); got.Code != 0 || got.Stdout != fmt.Sprintf("ended hold %d of \"api\" on host db-7\n", holders[3].Hold) {
		t.Errorf("%+v", got)
	}
	wantLost(1, 3)
	if got := d1.Run("force-release", "--host=db-7", "api"); got.Code != 0 || got.Stdout != "ended 3 holds of \"api\" on host db-7\n" {
		t.Errorf("%+v", got)
	}
	wantLost(0, 1, 2, 3, 4)
}

// A program without an SDK takes permits through the pipe.
func TestPipeServesPermits(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), harness.LongLease)
	p := startPipe(t, d)
	p.call(`{"op":"hello","id":1,"v":1,"client":"test/1"}`)
	held := p.call(`{"op":"acquire_permits","id":2,"name":"api","permits":2,"of":3}`)
	if fmt.Sprintf("%v of %v, %v", held["permits"], held["of"], held["count"]) != "2 of 3, 1" {
		t.Errorf("granted %v", held)
	}
	if a := p.call(`{"op":"acquire_permits","id":3,"name":"api","permits":2,"of":3,"wait_ms":0}`); a["err"].(harness.Message)["code"] != "timeout" {
		t.Errorf("a try was answered %v", a)
	}
	if row := p.call(`{"op":"info","id":4,"name":"api"}`)["lock"].(harness.Message); row["kind"] != "permits" || row["hold"] != held["hold"] {
		t.Errorf("granted %v, and info shows %v", held, row)
	}
	answer, event := p.call(`{"op":"force_release","id":5,"name":"api","hold":%v}`, held["hold"]), p.next()
	if answer["ev"] != nil {
		answer, event = event, answer
	}
	if fmt.Sprint(answer["id"]) != "5" || answer["hold"] != held["hold"] || event["ev"] != "lost" || event["hold"] != held["hold"] || event["reason"] != "forced" {
		t.Errorf("force_release: %v, %v", answer, event)
	}
}

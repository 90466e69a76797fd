package cli

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// twoHosts starts the daemons of the hosts db-7 and web-1.
func twoHosts(t *testing.T, argsOf7 ...string) (d7, d1 *harness.Daemon) {
	redis := harness.StartRedis(t).UnixURL()
	d7 = harness.StartDaemon(t, redis, append(argsOf7, "--host-name=db-7")...)
	d1 = harness.StartDaemon(t, redis, "--host-name=web-1")
	return d7, d1
}

// Errors and ls name the host that has a lock, and ls also the process. The daemons learn the names
// from Redis.
func TestOtherHostsAreNamed(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	awaitHosts(t, d1, 2)
	holder := harness.StartRun(t, d7, "job", "echo running; read line")
	holder.AwaitOutput("running")
	harness.StartRun(t, d1, "job", "echo ran")
	harness.Eventually(t, "the run on web-1 waits", func() bool { return harness.Waiters(t, d1, "job") == 1 })

	raw := harness.DialRaw(t, d1)
	defer raw.Conn.Close()
	harness.Eventually(t, "an error names the host", func() bool {
		why := raw.ExpectRefusal(protocol.Timeout, harness.Message{"op": "acquire", "name": "job", "wait_ms": 10})
		return strings.Contains(why, "held on host db-7 (")
	})
	want := "held on host db-7 by pid " + strconv.Itoa(holder.PID()) + " ("
	harness.Eventually(t, "ls names host and process", func() bool { return strings.Contains(d1.Run("ls").Stdout, want) })

	var rows []struct {
		Host string `json:"remote_host"`
		PID  int    `json:"remote_pid"`
		Cmd  string `json:"remote_cmd"`
	}
	harness.Eventually(t, "so does ls --json", func() bool {
		rows = nil
		decode(t, d1.Run("ls", "--json").Stdout, &rows)
		return len(rows) == 1 && rows[0].Host == "db-7" && rows[0].PID == holder.PID()
	})
	harness.CheckContains(t, rows[0].Cmd, "locksidecar")
}

// The process whose --keep lasts is gone, and its pid may be that of another one.
func TestKeptLockNamesNoProcess(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	awaitHosts(t, d1, 2)
	run := harness.StartRun(t, d7, "nightly", "true", "--keep", "1m")
	run.Wait()
	harness.StartRun(t, d7, "nightly", "true")
	harness.StartRun(t, d1, "nightly", "true")
	harness.Eventually(t, "both hosts wait", func() bool {
		return harness.Waiters(t, d7, "nightly") == 1 && harness.Waiters(t, d1, "nightly") == 1
	})
	harness.Eventually(t, "ls of web-1 says that it is kept on db-7", func() bool {
		return strings.Contains(d1.Run("ls").Stdout, "kept on host db-7: released; its --keep lasts")
	})
	harness.CheckContains(t, d7.Run("status").Stdout, "held      1\n", `"nightly" is kept for another `)
	named := regexp.MustCompile(`(?im)(^ *|pid\W{1,3})` + strconv.Itoa(run.PID()) + `\b`) // other numbers may have the same digits
	for _, d := range []*harness.Daemon{d7, d1} {
		for _, args := range [][]string{{"ls"}, {"ls", "--json"}, {"who", "nightly"}, {"who", "--json", "nightly"}, {"status"}, {"status", "--json"}, {"ls", "--by", "process"}} {
			if got := d.Run(args...).Stdout; named.MatchString(got) {
				t.Errorf("%v names the process that ended, %d:\n%s", args, run.PID(), got)
			}
		}
	}
}

type hostRow struct {
	Host  string  `json:"host"`
	PID   int     `json:"pid"`
	Error string  `json:"error"`
	Locks []lsRow `json:"locks"`
}

// ls --all lists every host with its locks. One whose daemon has ended is shown as such.
func TestLsAllListsEveryHost(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t)
	holder := harness.StartRun(t, d7, "job", "echo running; read line")
	holder.AwaitOutput("running")
	list := func() map[string]hostRow {
		got := d1.Run("ls", "--all", "--json")
		if got.Code != 0 {
			return nil // Redis, or a host, has not answered in time
		}
		var rows []hostRow
		decode(t, got.Stdout, &rows)
		byName := make(map[string]hostRow)
		for _, r := range rows {
			byName[r.Host] = r
		}
		return byName
	}
	var hosts map[string]hostRow
	harness.Eventually(t, "both hosts answer", func() bool {
		hosts = list()
		return len(hosts) == 2 && hosts["db-7"].Error == "" && hosts["web-1"].Error == ""
	})
	if r := hosts["db-7"]; r.PID != d7.PID() || len(r.Locks) != 1 || r.Locks[0].Name != "job" || r.Locks[0].PID != holder.PID() {
		t.Errorf("db-7 is shown as %+v", r)
	}
	if r := hosts["web-1"]; r.PID != d1.PID() || len(r.Locks) != 0 {
		t.Errorf("web-1 is shown as %+v", r)
	}
	harness.CheckContains(t, d1.Run("ls", "--all").Stdout, "HOST db-7: ", "HOST web-1: ", "job", "no locks")

	harness.CheckContains(t, d1.Run("top", "--all", "--interval", "1s").Stdout, "1 lock of 2 hosts by waiters", "LOCK  HOST  WAITERS", "job   db-7        0  ")

	d7.Suspend()
	for _, args := range [][]string{{"hosts"}, {"ls", "--all"}, {"ls", "--all", "--by", "user"}} {
		got := d1.Run(args...).Stdout
		harness.CheckContains(t, got, "host db-7 did not answer within 500ms")
		if strings.Contains(got, "force-release") || strings.Contains(got, "cannot") {
			t.Errorf("%v says more of the host that is silent:\n%s", args, got)
		}
	}
	harness.CheckContains(t, d1.Run("force-release", "--host", "db-7", "job").Stderr, "host db-7 did not answer within 500ms; the force-release may have been executed")
	d7.Kill()
	harness.CheckContains(t, d1.Run("top", "--all", "--interval", "1s").Stdout, "NO ANSWER from db-7; 0 locks of 1 host by waiters")
	harness.Eventually(t, "db-7 does not answer", func() bool { return list()["db-7"].Error != "" })
	harness.CheckContains(t, d1.Run("ls", "--all").Stdout, "HOST db-7: ", "no answer: ", "does not run")
}

// force-release --host ends a hold of another host only where the daemon of that host permits it.
func TestForceReleaseOnAnotherHost(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t, "--other-hosts=force-release")
	lock := func(d *harness.Daemon) *harness.Worker {
		w := harness.StartGoWorker(t, d)
		w.Lock("stuck")
		return w
	}
	w := lock(d7)
	awaitHosts(t, d1, 2)
	got := d1.Run("force-release", "--host", "db-7", "stuck")
	if got.Code != 0 {
		t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
	}
	harness.CheckContains(t, got.Stdout, "ended hold", "on host db-7")
	if a := w.Try(harness.Command{Do: "lost", As: "stuck"}); a.Err != "lost" || a.Reason != "forced" {
		t.Errorf("the SDK of the holder reports %+v", a)
	}
	me := strconv.Itoa(os.Getuid())
	d7.Log.AwaitWords(t, "another host forced the release", "lock=stuck", "by_uid="+me, "by_cmd=\"locksidecar force-release", "host=web-1")
	d1.Log.AwaitWords(t, "client forced the release of a lock on another host", "lock=stuck", "on_host=db-7", "uid="+me)
	harness.Eventually(t, "the events of db-7 name who asked", func() bool {
		text := d7.Run("events", "stuck").Stdout
		return strings.Contains(text, "forced      stuck  by pid ") && strings.Contains(text, "(locksidecar force-release --host db-7 stuck) of "+display.Shown(me)+" on host web-1")
	})
	harness.Eventually(t, "the events of web-1 have it too", func() bool {
		text := d1.Run("events", "stuck").Stdout
		return strings.Contains(text, "(locksidecar force-release --host db-7 stuck) of ") && strings.Contains(text, "on host db-7")
	})
	if got := d1.Run("force-release", "--host", "db-7", "stuck"); got.Code == 0 {
		t.Error("force-release of a lock that db-7 does not hold ends with exit code 0")
	}

	lock(d1)
	awaitHosts(t, d7, 2)
	if got := d7.Run("force-release", "--host", "web-1", "stuck"); got.Code == 0 {
		t.Error("web-1 ended a hold for another host, which its settings do not permit")
	} else {
		harness.CheckContains(t, got.Stderr, "web-1", "other_hosts")
	}
	d1.Log.AwaitWords(t, "another host was not permitted to force the release", "lock=stuck", "by_uid="+me, "host=db-7")
	d7.Log.AwaitWords(t, "a client was not permitted to force the release", "lock=stuck", "on_host=web-1")
	for _, d := range []*harness.Daemon{d7, d1} {
		harness.CheckContains(t, d.Run("events", "stuck").Stdout, "refused to pid", "(locksidecar force-release --host web-1 stuck)")
	}
	if got := d1.Run("ls", "--json"); findRow(t, got.Stdout, "stuck").State != "held" {
		t.Errorf("the lock that was not forced: %s", got.Stdout)
	}
	if got := d1.Run("force-release", "--host", "db-8", "stuck"); got.Code == 0 {
		t.Error("force-release on a host that does not exist ends with exit code 0")
	} else {
		harness.CheckContains(t, got.Stderr, "db-8", "ls --all")
	}
}

// A daemon with other_hosts = "none" publishes nothing, and does not answer.
func TestHostThatShowsNothing(t *testing.T) {
	t.Parallel()
	d7, d1 := twoHosts(t, "--other-hosts=none")
	awaitHosts(t, d1, 1)
	if got := d7.Run("ls", "--all"); got.Code == 0 {
		t.Error("ls --all of a host that has nothing to do with others ends with exit code 0")
	} else {
		harness.CheckContains(t, got.Stderr, "other_hosts is none")
	}
	raw := harness.ConnectRaw(t, d7)
	defer raw.Conn.Close()
	sidecar, _ := raw.Call(harness.Message{"op": "hello", "v": protocol.Version, "client": "wire"})["sidecar"].(string)
	if got := d1.Run("force-release", "--host", sidecar, "stuck"); got.Code == 0 {
		t.Error("the host answers")
	} else {
		harness.CheckContains(t, got.Stderr, "did not answer")
	}
}

// awaitHosts waits until a daemon lists n hosts.
func awaitHosts(t *testing.T, d *harness.Daemon, n int) {
	t.Helper()
	harness.Eventually(t, "all hosts have published their names", func() bool {
		out := d.Run("ls", "--all", "--json")
		if out.Code != 0 {
			return false // Redis, or a host, has not answered in time
		}
		var rows []hostRow
		decode(t, out.Stdout, &rows)
		return len(rows) == n
	})
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

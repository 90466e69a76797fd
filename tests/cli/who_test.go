package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/tests/harness"
)

type whoRow struct {
	Key    string `json:"key"`
	Holder struct {
		PID   int    `json:"pid"`
		Token uint64 `json:"token"`
	} `json:"holder"`
	Owners []struct {
		Host string `json:"host"`
	} `json:"owners"`
	Queue []struct {
		Host string `json:"host"`
	} `json:"queue"`
}

// The command that a failed run names answers who holds the lock, from each host, with 500 others.
func TestCommandOfAMessageAnswersWhoHoldsTheLock(t *testing.T) {
	t.Parallel()
	server := harness.StartRedis(t)
	d7 := harness.StartDaemon(t, server.UnixURL(), "--host-name=db-7")
	d1 := harness.StartDaemon(t, server.UnixURL(), "--host-name=web-1")
	third := harness.StartDaemon(t, server.UnixURL(), "--host-name=web-2")
	for _, d := range []*harness.Daemon{d7, d1, third} {
		awaitHosts(t, d, 3)
	}
	holder := harness.StartRun(t, d7, "job", "echo running; read line")
	holder.AwaitOutput("running")
	got := third.Run("run", "--wait", "0", "job", "--", "true")
	_, command, found := strings.Cut(got.Stderr, "locksidecar who ")
	if name, _, _ := strings.Cut(command, " "); !found || name != "job" {
		t.Fatalf("the message is %q", got.Stderr)
	}
	waiter := harness.StartRun(t, d1, "job", "echo ran")
	harness.Eventually(t, "the run on web-1 waits", func() bool { return harness.Waiters(t, d1, "job") == 1 })

	calls := func() (scripts, others int) {
		harness.Eventually(t, "a who without other traffic", func() bool {
			before := server.CommandCalls(context.Background())
			d1.Run("who", "job")
			after := server.CommandCalls(context.Background())
			scripts, others = after["evalsha"]-before["evalsha"], after["hget"]-before["hget"]+after["zrange"]-before["zrange"]+after["publish"]-before["publish"]
			return scripts == 1
		})
		return scripts, others
	}
	_, few := calls()
	for i := range 500 {
		uuid := fmt.Sprintf("22222222-0000-8000-8000-%012d", i)
		server.MustDo("zadd", "locksidecar_hosts:{}", 0, uuid)
		server.MustDo("hset", "locksidecar_host:{"+uuid+"}", "about", fmt.Sprintf(`{"host":"host-%d"}`, i))
	}
	if _, many := calls(); many > few+100 { // daemons publish their names meanwhile
		t.Errorf("%d commands with 503 hosts, %d with three", many, few)
	}
	for _, d := range []*harness.Daemon{d7, d1, third} {
		var row whoRow
		harness.Eventually(t, "the host that waits is in the queue", func() bool {
			begin := time.Now()
			out := d.Run("who", "--json", "job")
			if out.Code != 0 {
				return false // Redis has not answered in time
			}
			t.Logf("with 500 hosts: %v", time.Since(begin))
			row = whoRow{}
			decode(t, out.Stdout, &row)
			return len(row.Queue) == 1 && row.Holder.PID != 0
		})
		if row.Key != "lock" || row.Holder.PID != holder.PID() || row.Holder.Token == 0 || row.Owners[0].Host != "db-7" || row.Queue[0].Host != "web-1" {
			t.Errorf("who --json shows %+v", row)
		}
		text := d.Run("who", "job").Stdout
		harness.CheckContains(t, text, "db-7", "HOLDER  pid "+strconv.Itoa(holder.PID()), "SINCE", "TOKEN", "LEASE", "QUEUE   1. host web-1")
	}
	harness.CheckContains(t, d1.Run("who", "job").Stdout, "WAITING here: pid "+strconv.Itoa(waiter.PID()))

	d7.Suspend()
	defer d7.Signal(syscall.SIGCONT)
	harness.CheckContains(t, d1.Run("who", "job").Stdout, "by which process is not known", "host db-7 did not answer within 800ms", "EXPIRES in")
	if out := d1.Run("ls", "--all").Stdout; !strings.Contains(out, "did not answer within 500ms") || strings.Contains(out, "force-release") {
		t.Errorf("a list that has no answer shows\n%s", out)
	}
	harness.CheckContains(t, d1.Run("force-release", "--host", "db-7", "job").Stderr, "the force-release may have been executed")
}

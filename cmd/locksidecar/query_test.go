package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// The commands that ask a running sidecar.

func TestLsSortsAndFilters(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "ls"), 0, "")
	if a, b := strings.Index(out, "\na "), strings.Index(out, "\nb "); a < 0 || b < a {
		t.Errorf("ls printed\n%s", out)
	}
	if out := expectExit(t, start(t, f, "ls", "a"), 0, ""); strings.Contains(out, "\nb ") {
		t.Errorf("ls a printed\n%s", out)
	}
	if out := expectExit(t, start(t, f, "ls", "nothing"), 0, ""); !strings.Contains(out, "locksidecar who nothing asks") || strings.Contains(out, "start") {
		t.Errorf("ls nothing printed %q", out)
	}
	if out := expectExit(t, start(t, f, "ls", "b*"), 0, ""); !strings.Contains(out, "\nb ") || strings.Contains(out, "\na ") {
		t.Errorf("ls of a pattern printed %q", out)
	}
	if out := nothingListed(lockFilter{name: "f:"}, []locksidecar.LockInfo{{Name: "f:1"}, {Name: "g"}}); !strings.HasSuffix(out, "\nnames that start so: 1; locksidecar ls 'f:*' lists them") {
		t.Errorf("ls of the beginning of a name prints %q", out)
	}
	if out := expectExit(t, start(t, f, "ls", "none*"), 0, ""); !strings.Contains(out, "ls --all 'none*' asks all hosts") {
		t.Errorf("ls of a pattern that matches nothing printed %q", out)
	}
	if out := expectExit(t, start(t, f, "ls", "--json", "nothing"), 0, ""); out != "[]\n" {
		t.Errorf("ls --json nothing printed %q", out)
	}
}

func TestLsListsTheLocksOfASlot(t *testing.T) {
	f := startFake(t, func(f *fakeSidecar) { f.inCluster = true })
	if out := expectExit(t, start(t, f, "ls", "--slot", "0"), 0, ""); !strings.Contains(out, "\na ") || strings.Contains(out, "\nb ") {
		t.Errorf("ls of slot 0 printed\n%s", out)
	}
	if out := expectExit(t, start(t, f, "ls", "--slot=3300", "b*", "--json"), 0, ""); !strings.Contains(out, `"slot": 3300`) || strings.Contains(out, `"name": "a"`) {
		t.Errorf("ls of slot 3300 printed\n%s", out)
	}
	for args, want := range map[[2]string]string{
		{"--slot=7", ""}:      "no process of this host holds a lock of slot 7, or waits for one\n",
		{"--slot=3300", "a*"}: "no process of this host holds a lock of slot 3300 that matches \"a*\", or waits for one\n",
	} {
		if out := expectExit(t, start(t, f, "ls", args[0], args[1]), 0, ""); out != want {
			t.Errorf("ls %v printed %q", args, out)
		}
	}
	for _, slot := range []string{"-1", "16384"} {
		expectExit(t, start(t, f, "ls", "--slot="+slot), exitUsage, "a Redis Cluster has the slots 0 to 16383")
	}
	single := startFake(t)
	if out := expectExit(t, start(t, single, "ls", "--slot=0"), 0, ""); !strings.Contains(out, "its locks have no slots: Redis is no Cluster") {
		t.Errorf("ls of a slot without a Cluster printed %q", out)
	}
}

func TestPingAndForceReleasePrintTheAnswer(t *testing.T) {
	f := startFake(t)
	if out := expectExit(t, start(t, f, "ping"), 0, ""); !strings.Contains(out, "its Redis serves") {
		t.Errorf("ping printed %q", out)
	}
	if out := expectExit(t, start(t, f, "force-release", nameHeld), 0, ""); out != "ended hold 7 of \"held by another host\"\n" {
		t.Errorf("force-release printed %q", out)
	}
	expectExit(t, start(t, f, "force-release", "free"), 1, `locksidecar: no process of this host holds the lock "free"`)
	if out := expectExit(t, start(t, f, "force-release", nameWait), 0, ""); out != "ended 3 holds of \"waits forever\"\n" {
		t.Errorf("force-release of a semaphore printed %q", out)
	}
	if out := expectExit(t, start(t, f, "force-release", "--hold", "7", nameHeld), 0, ""); out != "ended hold 7 of \"held by another host\"\n" {
		t.Errorf("force-release of one hold printed %q", out)
	}
	expectExit(t, start(t, f, "force-release", "--hold", "8", nameHeld), 1, `no process of this host has hold 8 of "held by another host"; locksidecar who 'held by another host' shows the holds`)
	expectExit(t, start(t, f, "force-release", "--hold", "0", nameHeld), exitUsage, "--hold 0: holds have numbers from 1")
	expectExit(t, start(t, f, "force-release", "--hold", "7", "--orphaned", nameHeld), exitUsage, "--orphaned and --hold exclude each other")
}

// Redis serves, and the exit code says so; what may go wrong in a failover is printed.
func TestPingPrintsTheRiskOfRedis(t *testing.T) {
	f := startFake(t, func(f *fakeSidecar) { f.risk = "Redis has 2 replicas, and grants locks with 1 of them" })
	if out := expectExit(t, start(t, f, "ping"), 0, ""); !strings.Contains(out, "warning: "+f.risk+"\n") {
		t.Errorf("ping prints %q", out)
	}
}

func TestPingReportsTrouble(t *testing.T) {
	t.Parallel()
	f := startFake(t, func(f *fakeSidecar) { f.trouble = "the file system of the state is full" })
	if out := expectExit(t, start(t, f, "ping"), exitDegraded, "its Redis serves, but the sidecar is in trouble: the file system of the state is full"); out != "" {
		t.Errorf("printed %q", out)
	}
	away := startFake(t, func(f *fakeSidecar) { f.trouble, f.redis = "full", func() string { return "it is away" } })
	expectExit(t, start(t, away, "ping"), exitUnavailable, "its Redis does not serve: it is away")
}

func TestForceReleaseOfAnOrphanedLockNamesTheRisk(t *testing.T) {
	f := startFake(t)
	out := expectExit(t, start(t, f, "force-release", "--orphaned", nameHeld), 0, "")
	for _, part := range []string{
		`freed the orphaned lock "held by another host": deleted hold 7 of sidecar 1f0c9d5e; the first host that waited has the lock`,
		"only cut off from Redis, processes there may still use the lock, at most until ", " (2h00m from now)\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("printed %q, without %q", out, part)
		}
	}
	expectExit(t, start(t, f, "force-release", "--orphaned", nameDenied), exitDenied, "it may be alive")
	expectExit(t, start(t, f, "force-release", "--orphaned", "old"), 1, "upgrade it and restart it")
	expectExit(t, start(t, f, "force-release", "--orphaned", "--host", "db-7", nameHeld), exitUsage, "exclude each other")
	if got := describeFreed("a", &locksidecar.OrphanedLock{Persistent: true}, time.Now()); !strings.Contains(got, "the lock is free\n") || !strings.Contains(got, "their lease had no end") {
		t.Errorf("printed %q", got)
	}
}

func TestVersionNamesTheProtocol(t *testing.T) {
	out := expectExit(t, start(t, &fakeSidecar{}, "version", "--json"), 0, "")
	var v struct {
		Version  string
		Protocol int
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Version == "" || v.Protocol != 1 {
		t.Errorf("printed %q, %v", out, err)
	}
}

func TestVersionFlagAndHelpCommandAreAliases(t *testing.T) {
	version := expectExit(t, start(t, &fakeSidecar{}, "version"), 0, "")
	if out := expectExit(t, start(t, &fakeSidecar{}, "--version"), 0, ""); out != version {
		t.Errorf("--version printed %q, and version %q", out, version)
	}
	for _, args := range [][]string{{"--help"}, {"run", "--help"}} {
		want := expectExit(t, start(t, &fakeSidecar{}, args...), 0, "")
		help := append([]string{"help"}, args[:len(args)-1]...)
		if out := expectExit(t, start(t, &fakeSidecar{}, help...), 0, ""); out != want {
			t.Errorf("%q printed\n%s", help, out)
		}
	}
}

func TestPingRetriesUntilRedisServes(t *testing.T) {
	t.Parallel()
	asked := 0
	f := startFake(t, func(f *fakeSidecar) {
		f.redis = func() string {
			if asked++; asked < 3 {
				return "Redis has not been reached yet"
			}
			return "ok"
		}
	})
	expectExit(t, start(t, f, "ping"), 0, "")
	f = startFake(t, func(f *fakeSidecar) { f.redis = func() string { return "Redis refuses connections" } })
	expectExit(t, start(t, f, "ping"), exitUnavailable, "Redis refuses connections")
}

func TestHelpOfEverySubcommandHasAnExample(t *testing.T) {
	help := expectExit(t, start(t, &fakeSidecar{}, "--help"), 0, "")
	for _, name := range []string{"serve", "run", "who", "ls", "status", "top", "events", "force-release", "ping", "demo", "version"} {
		if !strings.Contains(help, "\n  "+name+" ") {
			t.Errorf("the help does not name %s", name)
		}
		text := expectExit(t, start(t, &fakeSidecar{}, name, "--help"), 0, "")
		if !strings.Contains(text, "Example") || !strings.Contains(text, "locksidecar "+name) {
			t.Errorf("%s --help has no example:\n%s", name, text)
		}
	}
}

func TestUsageErrorsAreOneSentence(t *testing.T) {
	for _, args := range [][]string{{"serv"}, {"ls", "--nope"}, {"run"}, {"run", "job"}, {"run", "job", "--"}} {
		p := start(t, &fakeSidecar{}, args...)
		expectExit(t, p, exitUsage, "locksidecar: ")
		if strings.Count(p.stderr.String(), "\n") != 1 {
			t.Errorf("%q printed\n%s", args, p.stderr.String())
		}
	}
}

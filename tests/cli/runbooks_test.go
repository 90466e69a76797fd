package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// incident is two hosts with what a page of the runbooks is about.
type incident struct {
	*testing.T
	redis   *harness.Redis   // nil: it is a Cluster
	proxy   *harness.Proxy   // between the daemons and Redis
	cluster *harness.Cluster // nil: it is one Redis
	here    *harness.Daemon
	there   *harness.Daemon
	jobs    []*harness.RunProcess
}

// job starts a run of invoice:42 on a host, and waits until it has the lock.
func (i *incident) job(d *harness.Daemon, flags ...string) *harness.RunProcess {
	i.Helper()
	job := i.waiter(d, flags...)
	job.AwaitOutput("running")
	return job
}

// waiter starts a run of invoice:42 on a host.
func (i *incident) waiter(d *harness.Daemon, flags ...string) *harness.RunProcess {
	i.Helper()
	job := harness.StartRun(i.T, d, "invoice:42", "echo running; read line", flags...)
	i.jobs = append(i.jobs, job)
	return job
}

// end ends all jobs, and waits until no host has a lock.
func (i *incident) end() {
	i.Helper()
	for _, job := range i.jobs {
		job.CloseStdin()
	}
	for _, job := range i.jobs {
		job.Wait()
	}
	i.jobs = nil
	harness.Eventually(i.T, "no host has the lock", func() bool { return len(i.redis.Fields("invoice:42")) == 0 })
}

// shown is what a command of a page shows in the incident.
type shown struct {
	command string
	before  func(*incident) // nil: the incident stays as it is
	code    int
	words   []string // of its output, or "[" and "]" around a regular expression
	isThere bool     // it runs on the other host
}

// book is the incident of a page, and what each command of the page shows, in their order.
type book struct {
	page        string
	isOfCluster bool
	args        []string        // of the daemon here
	socket      func(*incident) // nil: a daemon that has its socket as usual
	begin       func(*incident) // has the incident happen
	shows       []shown
	over        func(*incident) // ends the incident; nil: nothing has to
	after       []shown         // what the page says of its end
}

var runbooks = []book{
	{
		page:  "redis-down.md",
		begin: func(i *incident) { i.job(i.here); i.redis.Stop(); i.here.Log.AwaitWords(i.T, "redis is down") },
		shows: []shown{
			{command: "locksidecar ping", code: 69, words: []string{"Redis"}},
			{command: "locksidecar status", words: []string{"REDIS", "held"}},
			{command: "locksidecar events --since 1h", words: []string{"redis_down", "Redis cannot be used: "}},
		},
		over: func(i *incident) { i.redis.Start(); i.here.AwaitRedis("ok") },
		after: []shown{
			{command: "locksidecar ping", words: []string{"its Redis serves"}},
			{command: "locksidecar events --since 1h", words: []string{"redis_up"}},
		},
	},
	{
		page: "redis-degraded.md",
		begin: func(i *incident) {
			i.job(i.here)
			i.redis.MustDo("CONFIG", "SET", "maxmemory", "1")
			if got := i.here.Run("run", "--wait", "0", "other", "--", "true"); got.Code == 0 {
				i.Error("Redis without memory has granted a lock")
			}
			harness.Eventually(i.T, "Redis is degraded", func() bool { return i.here.Run("ping").Code == 74 })
		},
		shows: []shown{
			{command: "locksidecar ping", code: 74, words: []string{"OOM"}},
			{command: "locksidecar redis-cli info memory", words: []string{"maxmemory:1", "maxmemory_policy:noeviction"}},
			{command: "locksidecar redis-cli info persistence", words: []string{"rdb_last_bgsave_status:"}},
		},
		over: func(i *incident) {
			i.redis.MustDo("CONFIG", "SET", "maxmemory", "0")
			harness.Eventually(i.T, "Redis is not degraded", func() bool { return i.here.Run("ping").Code == 0 })
		},
		after: []shown{{command: "locksidecar ping", words: []string{"its Redis serves"}}},
	},
	{
		page:        "slot-open.md",
		isOfCluster: true,
		begin: func(i *incident) {
			tag := i.cluster.Names(0, "job", 1)[0]
			moved, left := "{"+tag+"}:moved", "{"+tag+"}:left"
			for _, name := range []string{moved, left} {
				job := harness.StartRun(i.T, i.there, name, "echo running; read line")
				job.AwaitOutput("running")
				i.jobs = append(i.jobs, job)
			}
			i.cluster.OpenMigration(harness.Slot(tag), i.cluster.ShardMaster(1)).MoveKeys(moved) // and not its token counter
			i.jobs = append(i.jobs, harness.StartRun(i.T, i.here, moved, "read line"))           // waits
			i.here.Log.AwaitWords(i.T, "a slot of the Cluster stays open", "locks_wait=true")
		},
		shows: []shown{
			{command: "locksidecar ping", code: 74, words: []string{"docs/runbooks/slot-open.md"}},
			{command: "locksidecar status", words: []string{"REDIS", "has been migrating from 127.0.0.1:", "for more than 10s"}},
			{command: "locksidecar events --since 15m", words: []string{"slots_open ", "slots of the Cluster stay open: slot "}},
		},
		over: func(i *incident) {
			tag := i.cluster.Names(0, "job", 1)[0]
			left, from, to := "{"+tag+"}:left", i.cluster.ShardMaster(0), i.cluster.ShardMaster(1)
			values := map[string]string{"10.0.0.1:6379": from.Address(), "10.0.0.2:6379": to.Address(), "2779": strconv.Itoa(harness.Slot(tag))}
			field := func(n *harness.ClusterNode) string {
				p := n.Pipeline()
				p.Do(i.Context(), "ASKING")
				keys := p.HKeys(i.Context(), left)
				_, _ = p.Exec(i.Context())
				return fmt.Sprint(keys.Result())
			}
			held := field(from)
			values["auth="] = "auth='auth2 stranger wrong' #"
			if out, err := i.runScript("slot-open.md", values); err == nil || field(from) != held {
				i.Fatalf("a move that fails closes the slot: %v, %s\n%s", err, field(from), out)
			}
			delete(values, "auth=")
			if out, err := i.runScript("slot-open.md", values); err != nil || field(to) != held {
				i.Fatalf("the commands of the page: %v, %s, want %s\n%s", err, field(to), held, out)
			}
			i.here.Log.AwaitWords(i.T, "no slot of the Cluster stays open any more")
			for _, d := range []*harness.Daemon{i.here, i.there} {
				if log := d.Log.String(); strings.Contains(log, "lock lost") {
					i.Errorf("a lock was lost by what the page says:\n%s", log)
				}
			}
		},
		after: []shown{
			{command: "locksidecar events --since 15m", words: []string{"slots_closed ", "no slot of the Cluster stays open any more"}},
			{command: "locksidecar ping", words: []string{"its Redis serves"}},
		},
	},
	{
		page: "data-lost.md",
		args: []string{"--lease=3s"}, // the holder is notified at its next renewal
		begin: func(i *incident) {
			i.job(i.here)
			i.redis.MustDo("FLUSHALL")
			i.here.Log.AwaitWords(i.T, "lock lost", "lock=invoice:42", "reason=deleted")
		},
		shows: []shown{
			{command: "locksidecar events --since 1h", words: []string{"lost        invoice:42  deleted: its key was deleted in Redis; held for ", "by pid "}},
			{command: "locksidecar who invoice:42", words: []string{"STATE   free"}},
			{command: "locksidecar redis-cli info persistence", words: []string{"aof_enabled:0"}},
			{command: "locksidecar redis-cli config get maxmemory-policy", words: []string{"noeviction"}},
			{command: `locksidecar redis-cli info commandstats | grep -E "flush(all|db)"`, words: []string{"cmdstat_flushall:calls=1"}},
			{command: "locksidecar redis-cli time; date +%s", words: []string{`[(?s)^1\d{9}\n\d+\n1\d{9}\n$]`}},
		},
	},
	{
		page: "lock-leak.md",
		args: []string{"--max-holds=100"},
		begin: func(i *incident) {
			client := harness.Dial(i.T, i.here)
			i.Cleanup(func() { client.Close() })
			for n := range 95 {
				if _, err := client.Lock(i.Context(), fmt.Sprintf("leak:%d", n)); err != nil {
					i.Fatal(err)
				}
			}
			i.job(i.there)
			awaitHosts(i.T, i.here, 2)
		},
		shows: []shown{
			{command: "locksidecar ls --by process", words: []string{`[\n *\d+  \S+ +95 +0 ]`}},
			{command: "locksidecar ls --by name-pattern --all", words: []string{`[\nleak:\*  +95 +0 ]`, `[\ninvoice:\* +1 ]`}},
			{command: "locksidecar metrics | grep _limit", words: []string{`locksidecar_limit_used{limit="max_holds"} 95`, `locksidecar_limit{limit="max_holds"} 100`}},
		},
	},
	{
		page: "failing-over.md",
		begin: func(i *incident) {
			i.job(i.here)
			next := harness.StartRedis(i.T)
			i.redis = next
			i.proxy.ForwardTo(next)
			i.here.Log.AwaitWords(i.T, "redis is up", "data_lost=possibly")
			for _, d := range []*harness.Daemon{i.here, i.there} {
				harness.Eventually(i.T, "the daemon uses the next Redis", func() bool { return strings.Contains(d.Run("ping").Stdout, runID(i)) })
			}
			awaitHosts(i.T, i.here, 2)
		},
		shows: []shown{
			{command: "locksidecar ping", words: []string{"its Redis serves", "127.0.0.1:", "run id "}},
			{command: "locksidecar ls --all", words: []string{"HOST db-7: ", "HOST db-8: ", "invoice:42"}},
			{command: "locksidecar events --since 15m", words: []string{"redis_down", "redis_up", "data_lost"}},
			{command: "locksidecar redis-cli role", words: []string{"master"}},
		},
	},
	{
		page: "lock-stuck.md",
		args: []string{"--other-hosts=force-release"},
		begin: func(i *incident) {
			first := i.job(i.here)
			holder := i.waiter(i.here)
			harness.Eventually(i.T, "the second job waits", func() bool { return harness.Waiters(i.T, i.here, "invoice:42") == 1 })
			// The second job has waited for long enough that its grant is an event.
			harness.Eventually(i.T, "it has waited for 20 ms", func() bool {
				w := harness.Info(i.T, i.here, "invoice:42").Waiters
				return len(w) == 1 && w[0].Waited > 20*time.Millisecond
			})
			first.CloseStdin()
			holder.AwaitOutput("running")
			i.waiter(i.there)
			harness.Eventually(i.T, "a job of the other host waits", func() bool {
				return harness.Waiters(i.T, i.there, "invoice:42") == 1 && i.redis.Tickets("invoice:42") == 1
			})
			holder.Signal(syscall.SIGSTOP)
		},
		shows: []shown{
			{command: "locksidecar who invoice:42", words: []string{"STATE   held on this host, db-7", "HOLDER  pid ", "locksidecar run -- sh", "SINCE   ", "QUEUE   1. host db-8"}},
			{command: "locksidecar events --since 8h invoice:42", words: []string{"granted     invoice:42  to pid ", "waited for pid "}},
			{command: `locksidecar ls "invoice:*"`, words: []string{"invoice:42  held", "locksidecar run -- sh"}},
			{command: "locksidecar force-release invoice:42", words: []string{`of "invoice:42"`}},
			{command: "locksidecar force-release --host db-7 invoice:42", isThere: true, words: []string{"ended hold", "on host db-7"}, before: func(i *incident) {
				i.jobs[1].Signal(syscall.SIGCONT) // the holder
				i.end()
				i.job(i.here)
			}},
			{command: "locksidecar who partner-api", words: []string{"STATE   a semaphore: 2 of 10 permits held, 8 free", "HELD    2 on this host, db-7", "hold 7: 2 permits, pid "}, before: func(i *incident) { i.holdPermits(7) }},
			{command: "locksidecar force-release --hold 7 partner-api", words: []string{`ended hold 7 of "partner-api"`}},
		},
	},
	{
		page: "host-dead.md",
		begin: func(i *incident) {
			awaitHosts(i.T, i.there, 2)
			i.job(i.here)
			i.waiter(i.there)
			harness.Eventually(i.T, "a job of the other host waits", func() bool { return harness.Waiters(i.T, i.there, "invoice:42") == 1 })
			i.here.Kill()
		},
		shows: []shown{
			{command: "locksidecar ls --all", isThere: true, words: []string{"HOST db-7: ", "no answer: ", "HOST db-8: "}},
			{command: "locksidecar who invoice:42", isThere: true, words: []string{"STATE   held by host db-7", "by which process is not known", "the daemon of host db-7 is not connected to Redis", "EXPIRES in ", "WAITING here: pid "}},
			{command: "locksidecar force-release --orphaned invoice:42", isThere: true, words: []string{"freed the orphaned lock", "may still use the lock, at most until "},
				before: func(i *incident) { // the three minutes pass in which the daemon may be starting again
					i.redis.MustDo("EVAL", "for _, key in ipairs(redis.call('KEYS', 'locksidecar_host:*')) do redis.call('DEL', key) end return 0", "0")
				}},
		},
	},
	{
		page:  "daemon-hung.md",
		begin: func(i *incident) { i.job(i.here); i.here.Suspend() },
		shows: []shown{
			{command: "systemctl status locksidecar"},
			{command: "journalctl -u locksidecar --since -15min"},
			{command: "locksidecar ping", code: 69, words: []string{"locksidecar: "}},
			{command: "locksidecar status", words: []string{"restart   took over 1 held lock of 1 client"}, before: func(i *incident) {
				i.here.Kill()
				i.here.Start("--host-name=db-7")
				i.here.AwaitSocket()
				i.here.AwaitRedis("ok")
				harness.Eventually(i.T, "the client is back", func() bool { return strings.Contains(i.here.Run("status").Stdout, ": 1 back") })
			}},
		},
		after: []shown{{command: "locksidecar ping", words: []string{"its Redis serves"}}},
	},
	{
		page:   "state-incomplete.md",
		socket: onAFullFileSystem,
		begin: func(i *incident) {
			client := harness.Dial(i.T, i.here)
			i.Cleanup(func() { client.Close() }) // before the daemon ends, for which it would wait
			for n := 0; !i.here.Log.Contains("does not have every lock"); n++ {
				if n == 5000 {
					i.Fatal("the state file has room for 5000 locks")
				}
				if _, err := client.Lock(i.Context(), fmt.Sprintf("lock-%d", n)); err != nil {
					i.Fatal(err)
				}
			}
		},
		shows: []shown{
			{command: "locksidecar status", words: []string{"TROUBLE", "a restart of the sidecar would end all locks of this host"}},
			{command: "df /run"},
		},
	},
	{
		page:  "upgrade.md",
		begin: func(i *incident) { awaitHosts(i.T, i.here, 2); i.job(i.here) },
		shows: []shown{
			{command: "locksidecar ping", words: []string{"its Redis serves"}},
			{command: "locksidecar status", words: []string{"redis     serves", "held"}},
			{command: "locksidecar serve --check --config /etc/locksidecar/locksidecar.toml", words: []string{"the settings can work"}},
			{command: "locksidecar hosts", words: []string{"[db-7  ok     0\\.\\S+ .*]", "db-8  ok"}},
		},
	},
	{
		page:  "draining.md",
		begin: func(i *incident) { i.job(i.here) },
		shows: []shown{
			{command: "locksidecar ls", words: []string{"invoice:42  held", "locksidecar run -- sh"}},
			{command: "locksidecar status", words: []string{"held      1"}},
			{command: "locksidecar force-release invoice:42", words: []string{"ended hold"}},
			{command: "systemctl stop locksidecar"},
		},
		over:  func(i *incident) { i.end() },
		after: []shown{{command: "locksidecar ls", words: []string{"no process of this host holds a lock or waits for one"}}},
	},
}

// runID returns the run id of the Redis of an incident.
func runID(i *incident) string {
	info := i.redis.Info(i.Context(), "server").Val()
	_, id, _ := strings.Cut(info, "run_id:")
	id, _, _ = strings.Cut(id, "\r")
	return id
}

// onAFullFileSystem gives the daemon here a socket on a file system whose room is used up.
func onAFullFileSystem(i *incident) {
	dir := harness.ShortDir(i.T)
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=524288"); err != nil {
		i.Skipf("no tmpfs can be mounted here: %v", err)
	}
	i.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			i.Error(err)
		}
	})
	i.here.Socket = filepath.Join(dir, "s.sock")
	i.here.Start("--host-name=db-7")
	i.here.AwaitSocket()
	i.here.AwaitRedis("ok")
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); err == nil {
		i.Fatal("the file system has more room than it should have")
	}
}

// holdPermits holds two permits of a semaphore on this host, until the test ends, with the hold of that number.
func (i *incident) holdPermits(number uint64) {
	s := harness.Dial(i.T, i.here).Semaphore("partner-api", 10)
	for {
		p, err := s.Acquire(i.Context(), 2)
		if err != nil {
			i.Fatal(err)
		}
		switch hold := harness.Info(i.T, i.here, "partner-api").Hold; {
		case hold == number:
			return
		case hold > number:
			i.Fatalf("the hold has number %d: this host has had more than %d holds before", hold, number)
		}
		if err := p.Release(); err != nil {
			i.Fatal(err)
		}
	}
}

// readRunbooks returns the text of each page, by its name.
func readRunbooks(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(harness.Root(), "docs/runbooks/*.md"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("there are %d pages: %v", len(paths), err)
	}
	pages := make(map[string]string)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		pages[filepath.Base(path)] = string(text)
	}
	return pages
}

// Each command of a page runs as it is written there, in the incident of the page, and shows what
// the page says. Those of systemd are run by make test-systemd.
//
// Shows docs/runbooks/slot-open.md: A slot of the Cluster stays open.
func TestRunbooksShowTheirIncidents(t *testing.T) {
	t.Parallel()
	redisCLI, err := exec.LookPath("redis-cli")
	if err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-cli is not installed: apt-get install redis-tools")
		}
		t.Skip("redis-cli is not installed: apt-get install redis-tools")
	}
	pages := readRunbooks(t)
	for _, b := range runbooks {
		t.Run(b.page, func(t *testing.T) {
			t.Parallel()
			var known []string
			for _, s := range b.shows {
				known = append(known, s.command)
			}
			if commands := commandsOf(pages[b.page]); !slices.Equal(commands, known) {
				t.Fatalf("the page has the commands\n%s\nand this test knows what these show\n%s", strings.Join(commands, "\n"), strings.Join(known, "\n"))
			}
			i := &incident{T: t}
			url := ""
			if b.isOfCluster {
				i.cluster = harness.StartCluster(t, 3, 0)
				url = i.cluster.URL()
			} else {
				i.redis = harness.StartRedis(t)
				i.proxy = harness.StartProxy(t, i.redis)
				url = i.proxy.URL()
			}
			i.here, i.there = harness.NewDaemon(t, url), harness.NewDaemon(t, url)
			i.there.Start("--host-name=db-8")
			i.there.AwaitSocket()
			i.there.AwaitRedis("ok")
			if b.socket != nil {
				b.socket(i)
			} else {
				i.here.Start(append([]string{"--host-name=db-7"}, b.args...)...)
				i.here.AwaitSocket()
				i.here.AwaitRedis("ok")
			}
			b.begin(i)
			for _, s := range b.shows {
				i.check(&s, redisCLI)
			}
			if b.over != nil {
				b.over(i)
			}
			for _, s := range b.after {
				i.check(&s, redisCLI)
			}
		})
	}
	for page := range pages {
		if page != "README.md" && !slices.ContainsFunc(runbooks, func(b book) bool { return b.page == page }) {
			t.Errorf("%s has no incident in this test", page)
		}
	}
}

// check runs a command, and checks that it shows what it should.
func (i *incident) check(s *shown, redisCLI string) {
	i.Helper()
	if s.before != nil {
		s.before(i)
	}
	if isOfSystem(s.command) {
		return // TestRunbooksNameWhatThereIs, and make test-systemd
	}
	d := i.here
	if s.isThere {
		d = i.there
	}
	ctx, cancel := context.WithTimeout(i.Context(), harness.Patience)
	defer cancel()
	command := s.command
	if i.redis != nil { // the settings file of the package
		file := filepath.Join(i.TempDir(), "locksidecar.toml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "redis = %q\n", i.redis.TCPURL()), 0o600); err != nil {
			i.Fatal(err)
		}
		command = strings.ReplaceAll(command, "/etc/locksidecar/locksidecar.toml", file)
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket,
		"PATH="+filepath.Dir(harness.Program(i.T))+":"+filepath.Dir(redisCLI)+":/usr/bin:/bin")
	if i.redis != nil {
		cmd.Env = append(cmd.Env, "LOCKSIDECAR_REDIS="+i.redis.TCPURL())
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		i.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code != s.code {
		i.Errorf("%s: exit code %d, want %d\n%s", s.command, code, s.code, out)
	}
	for _, word := range s.words {
		pattern, isPattern := strings.CutPrefix(word, "[")
		if isPattern && !regexp.MustCompile(strings.TrimSuffix(pattern, "]")).Match(out) || !isPattern && !strings.Contains(string(out), word) {
			i.Errorf("%s does not show %q:\n%s", s.command, word, out)
		}
	}
}

// runScript runs the commands for an administrator of Redis that a page has, with the values of this incident.
func (i *incident) runScript(page string, values map[string]string) (out string, err error) {
	i.Helper()
	_, script, _ := strings.Cut(readRunbooks(i.T)[page], "```bash\n")
	script, _, isThere := strings.Cut(script, "```")
	if !isThere {
		i.Fatalf("%s has no commands for an administrator", page)
	}
	for word, value := range values {
		if !strings.Contains(script, word) {
			i.Fatalf("the commands of %s do not have %q", page, word)
		}
		script = strings.Replace(script, word, value, 1)
	}
	output, err := exec.CommandContext(i.Context(), "bash", "-c", script).CombinedOutput()
	i.Logf("%s:\n%s", page, output)
	return string(output), err
}

// isOfSystem reports whether a command needs the systemd of the host, or its file systems.
func isOfSystem(command string) bool {
	program, _, _ := strings.Cut(command, " ")
	return slices.Contains([]string{"systemctl", "journalctl", "df"}, program)
}

var (
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	sinceAgo   = regexp.MustCompile(`^-\d+(s|min|h|days)$`)
	alertName  = regexp.MustCompile(`^Locksidecar[A-Z]\w+$`)
	metricName = regexp.MustCompile(`^locksidecar_\w+$`)
)

// What a page names in a sentence exists: commands with their flags, units, alerts and metrics.
func TestRunbooksNameWhatThereIs(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(harness.Root(), path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	alerts, metrics := read("deploy/locksidecar-alerts.yml"), read("docs/metrics.md")
	help := harness.RunProgram(t, nil, "--help").Stdout
	pages := readRunbooks(t)
	checked := 0
	for page, text := range pages {
		if page != "README.md" && !strings.Contains(pages["README.md"], "("+page+")") {
			t.Errorf("README.md does not name %s", page)
		}
		named := commandsOf(text)
		for _, m := range codeSpan.FindAllStringSubmatch(withoutBlocks(text), -1) {
			named = append(named, m[1])
		}
		for _, name := range named {
			why := ""
			words := strings.Fields(name)
			subcommand, isOwn := words[0], false
			if subcommand == "locksidecar" && len(words) > 1 {
				words, isOwn = words[1:], true
				subcommand = words[0]
			}
			switch {
			case isOfSystem(name) && len(words) == 1: // the program is named, not a command of it
				continue
			case words[0] == "systemctl":
				why = checkSystemctl(words[1:])
			case words[0] == "journalctl":
				why = checkJournalctl(words[1:])
			case words[0] == "df":
				if len(words) != 2 || !filepath.IsAbs(words[1]) {
					why = "df takes the path of a file system"
				}
			case alertName.MatchString(name):
				if !strings.Contains(alerts, "- alert: "+name+"\n") {
					why = "there is no such alert"
				}
			case metricName.MatchString(name):
				if !strings.Contains(metrics, "`"+name) {
					why = "there is no such metric"
				}
			case isOwn, strings.Contains(help, "\n  "+subcommand+" "):
				if !strings.Contains(help, "\n  "+subcommand+" ") {
					why = "there is no such command"
					break
				}
				flags := harness.RunProgram(t, nil, subcommand, "--help").Stdout
				for _, w := range words[1:] {
					if flag, _, _ := strings.Cut(w, "="); strings.HasPrefix(flag, "--") && !strings.Contains(flags, flag) {
						why = "there is no flag " + flag
					}
				}
			default:
				continue
			}
			checked++
			if why != "" {
				t.Errorf("%s: `%s`: %s", page, name, why)
			}
		}
	}
	// An alert leads to a page.
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(alerts, -1) {
		if !strings.Contains(pages["README.md"], "`"+m[1]+"`") {
			t.Errorf("README.md has no page for %s", m[1])
		}
	}
	if checked < 60 {
		t.Errorf("only %d names were checked", checked)
	}
}

// checkSystemctl returns why a command of systemctl is wrong; "": it is not.
func checkSystemctl(args []string) string {
	if len(args) == 0 || !slices.Contains([]string{"status", "start", "stop", "restart", "reload", "enable", "disable"}, args[0]) {
		return "systemctl has no such command"
	}
	switch {
	case len(args) == 1 && args[0] == "status": // "in `systemctl status`"
	case len(args) != 2:
		return "it needs one unit"
	default:
		return checkUnit(args[1])
	}
	return ""
}

// checkUnit returns why there is no unit with this name; "": there is one.
func checkUnit(name string) string {
	if filepath.Ext(name) == "" {
		name += ".service"
	}
	if _, err := os.Stat(filepath.Join(harness.Root(), "deploy", name)); err != nil {
		return "deploy/ has no unit " + name
	}
	return ""
}

// checkJournalctl returns why a command of journalctl is wrong; "": it is not.
func checkJournalctl(args []string) string {
	for len(args) > 0 {
		switch {
		case args[0] == "-u" && len(args) > 1:
			if why := checkUnit(args[1]); why != "" {
				return why
			}
		case args[0] == "--since" && len(args) > 1:
			if !sinceAgo.MatchString(args[1]) {
				return "--since takes a time such as -15min"
			}
		default:
			return "which option is " + args[0] + "?"
		}
		args = args[2:]
	}
	return ""
}

func TestCommandsOfSystemdAreChecked(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"restrt locksidecar", "restart locksidecard", "restart", "stop a b", ""} {
		if checkSystemctl(strings.Fields(wrong)) == "" {
			t.Errorf("systemctl %s is not refused", wrong)
		}
	}
	for _, wrong := range []string{"-u locksidecard", "--since 15", "--unit", "-f", "-u"} {
		if checkJournalctl(strings.Fields(wrong)) == "" {
			t.Errorf("journalctl %s is not refused", wrong)
		}
	}
}

// commandsOf returns the lines of the blocks of shell commands in a page.
func commandsOf(page string) (commands []string) {
	blocks := strings.Split(page, "```")
	for i := 1; i < len(blocks); i += 2 {
		lines, is := strings.CutPrefix(blocks[i], "sh\n")
		if !is {
			continue
		}
		for line := range strings.Lines(lines) {
			commands = append(commands, strings.TrimSpace(line))
		}
	}
	return commands
}

// withoutBlocks returns a page without its blocks of code.
func withoutBlocks(page string) string {
	var text strings.Builder
	for i, part := range strings.Split(page, "```") {
		if i%2 == 0 {
			text.WriteString(part)
		}
	}
	return text.String()
}

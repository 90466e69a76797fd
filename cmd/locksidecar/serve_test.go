package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
)

// daemonUnderTest is a `locksidecar serve` whose service manager is the test.
type daemonUnderTest struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr bytes.Buffer // read it after exit
	notify *net.UnixConn
}

func startServe(t *testing.T, cmd *exec.Cmd) *daemonUnderTest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { notify.Close() })
	if err := notify.SetReadDeadline(time.Now().Add(eventTimeoutMS * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	d := &daemonUnderTest{t: t, cmd: cmd, notify: notify}
	if cmd.Stderr == nil {
		cmd.Stderr = &d.stderr
	}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, unless the test failed
	})
	return d
}

// notified returns the next message to the service manager.
func (d *daemonUnderTest) notified() string {
	d.t.Helper()
	buf := make([]byte, 4096)
	n, err := d.notify.Read(buf)
	if err != nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait() // killed
		d.t.Fatalf("%v; the daemon printed\n%s", err, d.stderr.String())
	}
	return string(buf[:n])
}

// stopped ends the daemon with sig and returns its log.
func (d *daemonUnderTest) stopped(sig os.Signal) string {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	for d.notified() != "STOPPING=1" {
	}
	if code := exitCodeOf(d.t, d.cmd.Wait()); code != 0 {
		d.t.Errorf("exit code %d, want 0", code)
	}
	return d.stderr.String()
}

func TestServeIsReadyWithoutRedisAndNeverLogsThePassword(t *testing.T) {
	cleanEnv(t)
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
	cmd := command(f, "serve", "--log-level", "debug", "--lease", "12s")
	// No Redis listens there.
	cmd.Env = append(cmd.Env, "LOCKSIDECAR_REDIS=unix://app:hunter2@"+filepath.Join(t.TempDir(), "redis.sock"))
	d := startServe(t, cmd)
	if got := d.notified(); got != "READY=1" {
		t.Errorf("the first message is %q, want READY=1", got)
	}
	status := d.notified()
	if !strings.HasPrefix(status, "STATUS=Serving. Redis: ") || strings.HasSuffix(status, "ok") {
		t.Errorf("the message is %q, want what is wrong with Redis", status)
	}
	if info, err := os.Stat(f.path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v; want mode 0660", info, err)
	}
	log := d.stopped(unix.SIGTERM)
	for _, want := range []string{"socket=" + f.path, "redis=unix://app@/", "lease=12s", "version="} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "hunter2") || strings.Contains(status, "hunter2") {
		t.Errorf("the password is shown:\n%s\n%s", status, log)
	}
	if _, err := os.Stat(f.path); err == nil {
		t.Error("it left its socket behind")
	}
}

func TestSIGHUPDoesNotEndTheDaemon(t *testing.T) {
	cleanEnv(t)
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
	d := startServe(t, command(f, "serve", "--embedded"))
	if got := d.notified(); got != "READY=1" {
		t.Fatalf("the first message is %q, want READY=1", got)
	}
	if err := d.cmd.Process.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	expectPing(t, start(t, f, "ping"))
	if log := d.stopped(unix.SIGTERM); !strings.Contains(log, "SIGHUP has no effect") {
		t.Errorf("the log does not say so:\n%s", log)
	}
}

func TestServeUsesTheSocketThatSystemdMade(t *testing.T) {
	cleanEnv(t)
	path := filepath.Join(t.TempDir(), "activated.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := &fakeSidecar{path: path}
	d := startServe(t, activated(f, file, "--log-format", "json", "--metrics", filepath.Join(filepath.Dir(path), "metrics")))
	if got := d.notified(); got != "READY=1" {
		t.Errorf("the first message is %q, want READY=1", got)
	}
	p := start(t, f, "ping")
	expectPing(t, p)
	log := d.stopped(unix.SIGINT)
	for _, want := range []string{`"socket":"` + path + `"`, `"lease_seconds":30,`, `"address":"` + filepath.Join(filepath.Dir(path), "metrics") + `"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s:\n%s", want, log)
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("it removed a socket that is not its own: %v", err)
	}
}

// A number needs its unit in the key. Text has it in the value.
func TestDurationsInTheLogHaveAUnit(t *testing.T) {
	for format, want := range map[string]string{
		"json": `"retry_seconds":1.5,"g":{"lease_seconds":30,"n":7}}`,
		"text": `retry=1.5s g.lease=30s g.n=7`,
	} {
		var out strings.Builder
		c := &serveCmd{settings: settings{LogFormat: format}}
		c.logger(&out, false).With("retry", 1500*time.Millisecond).WithGroup("g").Info("it happened", "lease", 30*time.Second, "n", 7)
		if got := strings.TrimSuffix(out.String(), "\n"); !strings.HasSuffix(got, want) {
			t.Errorf("%s: the line is %s, want %s at its end", format, got, want)
		}
	}
}

// activated is a daemon to which systemd passes a socket.
func activated(f *fakeSidecar, socket *os.File, args ...string) *exec.Cmd {
	cmd := command(f)
	// systemd knows the pid before it starts the program; here the shell does.
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c",
		`LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve --embedded "$@"`, os.Args[0]}, args...)
	cmd.ExtraFiles = []*os.File{socket}
	return cmd
}

// systemd passes the socket to ExecStart=, and not to ExecReload=. What the check says must
// be true of the daemon that systemd would start.
func TestCheckOnReloadUsesTheSocketThatSystemdMade(t *testing.T) {
	cleanEnv(t)
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	name := "@" + state // an abstract socket, which has no directory for the state
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// No daemon could make a socket with this path, or with this group.
	f := &fakeSidecar{path: filepath.Join(dir, "state", "below", "s.sock")}
	settings := []string{"--socket-group", "no-such-group"}
	d := startServe(t, activated(f, file, append(settings, "--state", state)...))
	if got := d.notified(); got != "READY=1" {
		t.Fatalf("the first message is %q, want READY=1", got)
	}
	check := func(want int, message string, args ...string) {
		t.Helper()
		t.Setenv("MAINPID", strconv.Itoa(d.cmd.Process.Pid))
		out := expectExit(t, start(t, f, append([]string{"serve", "--check"}, args...)...), want, message)
		if want == 0 && !strings.Contains(out, "socket "+name) {
			t.Errorf("the check printed %q", out)
		}
	}
	check(0, "", append(settings, "--state", state, "--skip-redis")...)
	check(exitUsage, "name a state file", settings...)
	d.stopped(unix.SIGTERM)
}

// expectPing expects an answer of the sidecar. Its Redis may still be starting.
func expectPing(t *testing.T, p *program) {
	t.Helper()
	code, out := p.wait()
	if code != 0 && code != exitUnavailable || !strings.Contains(out+p.stderr.String(), "the sidecar answer") {
		t.Errorf("ping: exit code %d, %q, %q", code, out, p.stderr.String())
	}
}

// Every start would fail in the same way. With exit code 64, systemd does not start the daemon
// again.
func TestServeAndCheckRefuseSettingsThatCannotWork(t *testing.T) {
	for _, tt := range []struct {
		name string
		args func(dir string) []string
		want string
	}{
		{"a group that there is not", func(string) []string { return []string{"--socket-group", "no-such-group"} }, "no such group"},
		{"an option that the URL may not have", func(string) []string { return []string{"--redis", "redis://127.0.0.1:1/?foo=bar"} }, "the Redis URL is wrong"},
		{"a directory that cannot be made", func(dir string) []string { return []string{"--socket", dir + "/file/below/s.sock"} }, "directory of socket"},
		{"a path that is too long", func(string) []string { return []string{"--socket", "/tmp/" + strings.Repeat("x", 110)} }, "at most 107 bytes"},
		{"a file where the socket is to be", func(dir string) []string { return []string{"--socket", dir + "/file"} }, "not a socket"},
		{"a directory of the state that is not there", func(dir string) []string { return []string{"--state", dir + "/none/state"} }, "state file"},
		{"a directory as the state", func(dir string) []string { return []string{"--state", dir} }, "state file"},
		{"a file of another program as the state", func(dir string) []string { return []string{"--state", dir + "/file"} }, "not a state file"},
		{"a state that others can read", func(dir string) []string { return []string{"--state", dir + "/public"} }, "has mode 0644"},
		{"no lease", func(string) []string { return []string{"--lease", "0s"} }, "--lease must not be 0"},
		{"no time to resume", func(string) []string { return []string{"--resume-within", "0s"} }, "--resume-within must not be 0"},
		{"no sessions", func(string) []string { return []string{"--max-sessions", "0"} }, "--max-sessions must not be 0"},
		{"a negative limit", func(string) []string { return []string{"--max-locks=-1"} }, "max-locks -1"},
		{"a key prefix with half a hash tag", func(string) []string { return []string{"--key-prefix", "app1{"} }, "outside of a hash tag"},
		{"a key prefix that is reserved", func(string) []string { return []string{"--key-prefix", "locksidecar_"} }, "reserved"},
		{"a policy with an unknown key", func(dir string) []string {
			writeIn(t, dir, "s.toml", "\n[[policy]]\nname = 'x'\nhold = 1\n")
			return []string{"--config", dir + "/s.toml"}
		}, `s.toml, line 4: entry 1 of the policy ("x"): hold: there is no such key`},
		{"a policy with a user that there is not", func(dir string) []string {
			writeIn(t, dir, "s.toml", "\n[[policy]]\nname = 'x'\nholds = 1\nusers = ['no-such-user']\n")
			return []string{"--config", dir + "/s.toml"}
		}, `s.toml, line 5: entry 1 of the policy ("x"): users: "no-such-user"`},
		{"a settings file that is not there", func(string) []string { return []string{"--config", "/nonexistent.toml"} }, "cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := t.TempDir()
			writeIn(t, dir, "file", "of another program")
			if err := os.WriteFile(filepath.Join(dir, "public"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			t.Setenv("LOCKSIDECAR_SOCKET", filepath.Join(dir, "s.sock"))
			for _, mode := range []string{"serve", "serve --check"} {
				refused(t, append(strings.Fields(mode), tt.args(dir)...), tt.want)
			}
		})
	}
}

func TestCheckChangesNoFileOfARunningDaemon(t *testing.T) {
	cleanEnv(t)
	dir := t.TempDir()
	f := &fakeSidecar{path: filepath.Join(dir, "s.sock")}
	p := start(t, f, "serve", "--check")
	if out := expectExit(t, p, 0, ""); !strings.Contains(out, "the settings can work") || strings.Contains(out, "key prefix") {
		t.Errorf("it printed %q", out)
	}
	p = start(t, f, "serve", "--check", "--key-prefix", "{app1}:")
	if out := expectExit(t, p, 0, ""); !strings.Contains(out, `, key prefix "{app1}:"`) {
		t.Errorf("with a key prefix, it printed %q", out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	d := startServe(t, command(f, "serve", "--embedded"))
	if got := d.notified(); got != "READY=1" {
		t.Fatalf("the first message is %q, want READY=1", got)
	}
	before := listing(t, dir)
	expectExit(t, start(t, f, "serve", "--check", "--skip-redis"), 0, "")
	if after := listing(t, dir); after != before {
		t.Errorf("the files were\n%s, and are\n%s", before, after)
	}
	expectPing(t, start(t, f, "ping"))
	d.stopped(unix.SIGTERM)
}

// listing returns the entries of a directory with their inodes.
func listing(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, e.Name(), st.Ino, st.Size, st.Mode)
	}
	return out.String()
}

// The error passes when the other process ends, so systemd must start the daemon again.
func TestSocketOfAnotherDaemonIsNoSettingError(t *testing.T) {
	cleanEnv(t)
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
	d := startServe(t, command(f, "serve", "--embedded"))
	if got := d.notified(); got != "READY=1" {
		t.Fatalf("the first message is %q, want READY=1", got)
	}
	expectExit(t, start(t, f, "serve"), exitFailure, "another sidecar")
	d.stopped(unix.SIGTERM)
}

func TestServeRefusesPassedSocketsThatItCannotUse(t *testing.T) {
	cleanEnv(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	file, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packets, err := net.Listen("unixpacket", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	sequential, err := packets.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer sequential.Close()
	for _, tt := range []struct {
		fds  string
		file *os.File
		want string
	}{{"1", file, "not a Unix socket"}, {"2", file, "2 sockets"}, {"1", sequential, "not ListenSequentialPacket="}} {
		fds, want := tt.fds, tt.want
		cmd := command(&fakeSidecar{}, "serve")
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=` + fds + ` exec "$0" serve`, os.Args[0]}
		cmd.ExtraFiles = []*os.File{tt.file, file}
		out, err := cmd.CombinedOutput()
		if code := exitCodeOf(t, err); code != exitUsage || !strings.Contains(string(out), want) {
			t.Errorf("%s sockets: exit code %d, %q; want %q", fds, code, out, want)
		}
	}
}

// The smallest id of the nodes of a Cluster, which is its run id, changes when nodes come and go.
func TestClusterWithOtherNodesIsTheSame(t *testing.T) {
	nodes := func(ids ...string) map[string]bool {
		all := make(map[string]bool)
		for _, id := range ids {
			all[id] = true
		}
		return all
	}
	shards := []locksidecar.ShardStatus{{Address: "10.0.0.1:6379"}, {Address: "10.0.0.2:6379"}}
	for _, tt := range []struct {
		name   string
		to     sidecar.FoundRedis
		shards []locksidecar.ShardStatus
		isSame bool
	}{
		{"the same nodes", sidecar.FoundRedis{RunID: "b", Nodes: nodes("b", "c")}, nil, true},
		{"a node with a smaller id", sidecar.FoundRedis{RunID: "a", Nodes: nodes("a", "b", "c")}, nil, true},
		{"the node with the smallest id has left", sidecar.FoundRedis{RunID: "c", Nodes: nodes("c"), Masters: []string{"10.0.0.2:6379"}}, shards, true},
		{"another Cluster", sidecar.FoundRedis{RunID: "c", Nodes: nodes("c"), Masters: []string{"10.0.0.3:6379"}}, shards, false},
		{"another server", sidecar.FoundRedis{RunID: "c"}, nil, false},
		{"a server that does not tell", sidecar.FoundRedis{}, nil, true},
	} {
		tt.to.Address = "redis:6379/0"
		err := otherData(sidecar.Config{}, &tt.to, &locksidecar.Health{RedisRunID: "b", RedisAddress: "redis:6379/0"}, tt.shards)
		if (err == nil) != tt.isSame {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestCheckPermitsWhatTheRunningDaemonCannotUseEither(t *testing.T) {
	refuses := errors.New("it refuses connections")
	shards := []locksidecar.ShardStatus{
		{Address: "", Redis: "no master has the slot"}, {Address: "down:1", Redis: "it refuses connections"},
		{Address: "degraded:1", Redis: "it is out of memory", Degraded: true}, {Address: "up:1", Redis: "ok"},
	}
	for address, isPermitted := range map[string]bool{"": true, "down:1": true, "degraded:1": false, "up:1": false, "unknown:1": false} {
		if err := firstWorse(map[string]error{address: refuses}, shards); (err == nil) != isPermitted {
			t.Errorf("%q: %v", address, err)
		}
	}
	if err := firstWorse(map[string]error{"down:1": refuses}, nil); err == nil {
		t.Error("a master is down, and no daemon runs that cannot use it either")
	}
}

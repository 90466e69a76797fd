// Package harness starts what the tests look at from outside: the binary that ships, real
// Redis servers, and real client processes in Go, Python and Java. All packages of tests
// beside it use it, and the measurements in tests/bench do.
//
// Each Daemon stands for one host: it has a socket and a uuid of its own, and shares
// nothing with other daemons but Redis.
//
// Everything that is started ends with the test that has started it. A test shares nothing with
// others, so it is parallel; one that is not says why.
package harness

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Config is what a package of tests needs apart from the defaults. The zero value is valid.
type Config struct {
	// Roles are functions that the test binary runs instead of its tests when it is started
	// by RoleCommand. Each returns an exit code.
	Roles map[string]func() int

	// Program is the locksidecar to test. "": it is built from this tree.
	Program string
}

// roleVar is an environment variable with the role of a test binary. "": it runs tests.
const roleVar = "LOCKSIDECAR_TEST_ROLE"

var (
	root       string     // of the repository
	configured string     // Config.Program
	building   sync.Mutex // guards what follows
	programDir string     // where build has linked binaries; "": nothing has been built
)

// Root returns the path of the repository.
func Root() string { return root }

var program = sync.OnceValues(func() (string, error) {
	if configured != "" {
		return configured, nil
	}
	return build("locksidecar", "./cmd/locksidecar")
})

// Build builds a command of this repository, unless it is up to date, and returns its path.
func Build(t testing.TB, name, path string) string {
	t.Helper()
	own, err := build(name, path)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// Program returns the path of the locksidecar that is tested. Every user can execute it. The
// first call builds it.
func Program(t testing.TB) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Main runs the tests of a package and exits. TestMain calls it.
func Main(m *testing.M, c Config) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role, c.Roles))
	}
	// The race detector delays the exit of each process by a second otherwise.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(runTests(m, c))
}

func runRole(role string, roles map[string]func() int) int {
	switch run := roles[role]; {
	case run != nil:
		return run()
	case role == workerRole:
		return runWorker()
	case role == attackRole:
		return runAttack()
	}
	fmt.Fprintf(os.Stderr, "no role %q\n", role)
	return 2
}

func runTests(m *testing.M, c Config) int {
	var err error
	if root, err = findRoot(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	configured = c.Program
	setParallel()
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	endRedissonProcess()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// setParallel has several tests run at a time, unless go test was told how many. Tests wait for
// processes and for the ends of leases most of the time, so there are more than processors.
func setParallel() {
	const name, atOnce = "test.parallel", "3"
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == name })
	if !isSet {
		flag.Set(name, atOnce)
	}
}

// findRoot returns the first directory, from the working directory upwards, that contains
// the go.mod of locksidecar.
func findRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/locksidecar/locksidecar\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not in the repository of locksidecar", wd)
		}
	}
}

// build builds a command of this tree and returns the path of a hard link to it, in a directory of
// this process.
//
// go test runs several packages at a time, each in its own process. They share one binary
// in bin/test. A file lock serialises the builds: the first process links the binary, and
// for the others the Go command finds it up to date. With a link of its own, a process
// keeps the binary that it began with if another process rebuilds it from changed source.
func build(name, path string) (string, error) {
	shared, unlock, err := lockBinary(name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := compile(root, path, shared); err != nil {
		return "", err
	}
	building.Lock()
	defer building.Unlock()
	if programDir == "" {
		if programDir, err = os.MkdirTemp("", "lsc-bin"); err != nil {
			return "", err
		}
		// Some tests start the binary as another user.
		if err := os.Chmod(programDir, 0o755); err != nil {
			return "", err
		}
	}
	own := filepath.Join(programDir, name)
	if err := linkFile(shared, own); !errors.Is(err, os.ErrExist) {
		return own, err
	}
	return own, nil
}

// linkFile makes a hard link, or a copy on another file system. A file that is being written cannot be
// executed, and a process that another test starts meanwhile may have it open for a moment.
func linkFile(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, syscall.EXDEV) {
		return copyFile(from, to)
	}
	return err
}

// lockBinary returns the path of a binary in bin/test, and locks it against other processes until
// unlock. Its name says whether it was built with the race detector.
func lockBinary(name string) (path string, unlock func(), err error) {
	if RaceEnabled {
		name += "-race"
	}
	path = filepath.Join(root, "bin", "test", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", nil, err
	}
	for {
		if err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		lock.Close()
		return "", nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	return path, func() { lock.Close() }, nil
}

// compile builds a command from the source in a directory, with flags.
func compile(source, path, binary string, flags ...string) error {
	args := []string{"build", "-o", binary}
	if RaceEnabled {
		// The daemon reports its races to its log, which the harness checks.
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(append(args, flags...), path)...)
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building the binary: %w\n%s", err, out)
	}
	return nil
}

// copyFile copies an executable file.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// RoleCommand returns a command that starts this test binary again to run a role of
// Config.Roles. Its environment names the socket of d.
func RoleCommand(t testing.TB, d *Daemon, role string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVar+"="+role, "LOCKSIDECAR_SOCKET="+d.Socket)
	return cmd
}

// Patience is how long a test waits for something that must happen. It does not measure
// speed: it is long because the machine may be busy with other work.
const Patience = 90 * time.Second

// Eventually waits until cond is true. The test fails if that takes longer than Patience.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if !Within(Patience, cond) {
		t.Fatalf("not within %v: %s", Patience, what)
	}
}

// Within waits until a condition is met, and reports whether it was in time. The longer it takes, the
// longer are the pauses between two tries: many tests wait at a time.
func Within(patience time.Duration, cond func() bool) bool {
	for began := time.Now(); !cond(); {
		took := time.Since(began)
		if took > patience {
			return false
		}
		time.Sleep(min(2*time.Millisecond+took/20, 20*time.Millisecond))
	}
	return true
}

// ShortDir makes a directory whose path is short enough for a socket in it. The path of
// t.TempDir may be too long: sun_path has 108 bytes.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Output collects what a process writes. A test can read it while the process runs.
type Output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Contains reports whether the process has written s.
func (o *Output) Contains(s string) bool { return strings.Contains(o.String(), s) }

// AwaitWords waits until the process has written words, in upper or lower case. What it writes
// reaches the test through a pipe: perhaps after the test has seen what it is about.
func (o *Output) AwaitWords(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		Eventually(t, fmt.Sprintf("the log contains %q", w), func() bool {
			return strings.Contains(strings.ToLower(o.String()), strings.ToLower(w))
		})
	}
}

// TimeOf returns when a daemon logged the last line that has these words; zero: there is none.
func (o *Output) TimeOf(t testing.TB, words string) (at time.Time) {
	t.Helper()
	for line := range strings.Lines(o.String()) {
		text, ok := strings.CutPrefix(line, "time=")
		if !ok || !strings.Contains(line, words) {
			continue
		}
		var err error
		if at, err = time.Parse(time.RFC3339, strings.Fields(text)[0]); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// Tail returns the last n lines of s.
func Tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

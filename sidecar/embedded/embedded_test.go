package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// ownerEnv makes this test binary start a Redis, print its URL, and wait until it is killed.
const ownerEnv = "LOCKSIDECAR_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		r, err := Start(context.Background(), slog.Default())
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(r.URL())
		select {}
	}
	goleak.VerifyTestMain(m)
}

func connect(t *testing.T, r *Redis) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	opts.MaxRetries = -1
	c := redis.NewClient(opts)
	t.Cleanup(func() { c.Close() })
	return c
}

func needServer(t *testing.T) {
	t.Helper()
	if findServer("") == "" {
		t.Skip("no redis-server on this host")
	}
}

func TestPrivateServerAnswersAndRemovesItsFiles(t *testing.T) {
	needServer(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	r, err := Start(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^redis-server \d+\.\d+\.\d+ \(private\)$`).MatchString(r.Kind()) {
		t.Errorf("Kind() = %q", r.Kind())
	}
	c := connect(t, r)
	if err := c.Set(t.Context(), "k", "v", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if got := c.ConfigGet(t.Context(), "save").Val()["save"]; got != "" {
		t.Errorf("it would save to disk: %q", got)
	}
	if got := c.ConfigGet(t.Context(), "port").Val()["port"]; got != "0" {
		t.Errorf("it listens on TCP port %s", got)
	}
	made, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(made) != 1 {
		t.Fatalf("made %v, want one directory", made)
	}
	info, err := os.Stat(made[0])
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("directory %v, %v; want mode 0700", info.Mode(), err)
	}
	c.Close()
	r.Close()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left %v behind", left)
	}
}

func TestServerStartsDespiteALongTemporaryDirectory(t *testing.T) {
	needServer(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	r, err := Start(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !strings.HasSuffix(r.Kind(), "(private)") {
		t.Errorf("Kind() = %q", r.Kind())
	}
}

func TestInProcessRedisNeedsItsPasswordAndExpiresKeys(t *testing.T) {
	r, err := Start(t.Context(), slog.New(slog.DiscardHandler), InProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Kind() != "in-process" {
		t.Errorf("Kind() = %q", r.Kind())
	}
	c := connect(t, r)
	if err := c.Set(t.Context(), "k", "v", 20*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	for c.Exists(t.Context(), "k").Val() != 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("the key never expired")
		default:
		}
	}
	u, err := url.Parse(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	anonymous := redis.NewClient(&redis.Options{Addr: u.Host, MaxRetries: -1})
	defer anonymous.Close()
	if err := anonymous.Get(t.Context(), "k").Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Errorf("answered a client without a password: %v", err)
	}
}

func TestServerThatDoesNotStartIsLoggedAndReplaced(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "redis-server")
	if err := os.WriteFile(bad, []byte("#!/bin/sh\necho out of luck >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var logged lockedBuffer
	r, err := Start(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)), func(o *options) { o.path = bad })
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Kind() != "in-process" {
		t.Errorf("Kind() = %q", r.Kind())
	}
	if s := logged.String(); !strings.Contains(s, "out of luck") || !strings.Contains(s, bad) {
		t.Errorf("logged %q, want the reason and the path", s)
	}
}

func TestUnexpectedEndOfTheServerIsLoggedAsAnError(t *testing.T) {
	needServer(t)
	logged := lockedBuffer{written: make(chan struct{}, 8)}
	r, err := Start(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	pid := serverPID(t, r.URL())
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-logged.written
	if s := logged.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, "signal: killed") {
		t.Errorf("logged %q", s)
	}
	r.Close()
}

func TestServerEndsWithItsOwner(t *testing.T) {
	needServer(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	pidfd := openPidfd(t, serverPID(t, strings.TrimSpace(string(buf[:n]))))
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // an error: it was killed
	awaitPidfd(t, pidfd)
}

func serverPID(t *testing.T, rawURL string) int {
	t.Helper()
	opts, err := redis.ParseURL(rawURL)
	if err != nil {
		t.Fatalf("%q: %v", rawURL, err)
	}
	c := redis.NewClient(opts)
	defer c.Close()
	info, err := c.Info(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`process_id:(\d+)`).FindStringSubmatch(info)
	if m == nil {
		t.Fatalf("no process_id in %q", info)
	}
	pid, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// lockedBuffer is a buffer that sends to written with each Write.
type lockedBuffer struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	written chan struct{}
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

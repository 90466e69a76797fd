package embedded

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	startTimeout = 10 * time.Second
	stopTimeout  = 2 * time.Second
	// readyPoll is short because the daemon cannot serve before Redis is ready; a start takes
	// about 20 ms.
	readyPoll = 2 * time.Millisecond
	// maxSocketPath is sizeof(sockaddr_un.sun_path) less the final zero.
	maxSocketPath = 107
)

// server is a private redis-server process. One goroutine, run, forks it, waits for its end and
// closes exited.
type server struct {
	dir    string
	socket string
	log    *slog.Logger
	output tail

	process  *os.Process   // set before run reports that it has started
	exited   chan struct{} // closed when the process has ended; err is set before
	err      error
	stopping atomic.Bool // stop was called: its end is no error
}

func startServer(ctx context.Context, log *slog.Logger, path string) (*Redis, error) {
	dir, err := privateDir()
	if err != nil {
		return nil, err
	}
	s := &server{
		dir:    dir,
		socket: filepath.Join(dir, "redis.sock"),
		log:    log,
		exited: make(chan struct{}),
	}
	started := make(chan error)
	go s.run(path, started)
	if err := <-started; err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	version, err := s.awaitReady(ctx)
	if err != nil {
		s.stop()
		return nil, err
	}
	return &Redis{
		url:  "unix://" + s.socket,
		kind: "redis-server " + version + " (private)",
		stop: s.stop,
	}, nil
}

// privateDir makes a directory with mode 0700: the Redis has no password, and other users must
// not connect to its socket.
func privateDir() (string, error) {
	const pattern = "locksidecar-redis-"
	base := os.TempDir()
	if len(filepath.Join(base, pattern, "redis.sock"))+len("0123456789") > maxSocketPath {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, pattern)
	if err != nil {
		return "", fmt.Errorf("no place for a private Redis (set $TMPDIR to a directory that can be written): %w", err)
	}
	return dir, nil
}

// run runs the server. It stays on one thread, because the kernel sends PR_SET_PDEATHSIG when the
// thread that forked ends, and the Go runtime ends idle threads.
func (s *server) run(path string, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(path,
		"--port", "0",
		"--unixsocket", s.socket,
		"--unixsocketperm", "700",
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
		"--daemonize", "no",
		"--supervised", "no",
		"--maxmemory-policy", "noeviction",
		"--loglevel", "warning",
	)
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // Ctrl-C in a terminal ends us first, and we end it
	}
	// Without the environment of this process: it may have the socket of the service manager,
	// or the password of another Redis.
	cmd.Env = []string{"LC_ALL=C"}
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	s.process = cmd.Process
	started <- nil
	err := cmd.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	s.err = fmt.Errorf("the private redis-server ended (%w)%s", err, s.output.suffix())
	if !s.stopping.Load() {
		s.log.Error("the private redis-server died; restart locksidecar to get a new one",
			"redis_pid", s.process.Pid, "err", s.err)
	}
	close(s.exited)
}

// awaitReady waits until the server answers, and returns its version.
func (s *server) awaitReady(ctx context.Context) (version string, err error) {
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		version, err = s.version(ctx)
		if err == nil {
			return version, nil
		}
		select {
		case <-s.exited:
			return "", s.err
		case <-ctx.Done():
			return "", fmt.Errorf("the private redis-server is not ready: %w%s", err, s.output.suffix())
		case <-poll.C:
		}
	}
}

// version sends INFO server over a new connection. It uses no client library: the request is
// one line, and it reads one line of the answer.
func (s *server) version(ctx context.Context) (string, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", s.socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := c.Write([]byte("INFO server\r\n")); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "redis_version:"); ok {
			return strings.TrimSpace(v), nil
		}
		if strings.HasPrefix(lines.Text(), "-") {
			return "", errors.New(lines.Text())
		}
	}
	return "", fmt.Errorf("INFO has no redis_version: %w", errors.Join(lines.Err(), net.ErrClosed))
}

func (s *server) stop() {
	s.stopping.Store(true)
	// Signal returns an error if the process has ended already.
	_ = s.process.Signal(syscall.SIGTERM)
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-s.exited:
	case <-timeout.C:
		_ = s.process.Kill()
		<-s.exited
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.log.Warn("the private Redis left its directory behind", "dir", s.dir, "err", err)
	}
}

// tail stores the end of the server's output, which says why it ended.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// suffix returns ": " and the last line of the output; "": there is no output.
func (t *tail) suffix() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := bytes.TrimSpace(t.buf)
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) == 0 {
		return ""
	}
	return ": " + string(bytes.TrimSpace(text))
}

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
	// readyPoll is short because it is the only thing between a user and a
	// daemon that serves; a start takes about 20 ms.
	readyPoll = 2 * time.Millisecond
	// maxSocketPath is sizeof(sockaddr_un.sun_path) less the final zero.
	maxSocketPath = 107
)

// server is a private redis-server process. One goroutine, in watch, forks it,
// waits for it and closes exited.
type server struct {
	dir    string
	socket string
	log    *slog.Logger
	output tail

	process *os.Process   // set before started is answered
	exited  chan struct{} // closed when the process is gone; err is set before
	err     error
	closing atomic.Bool // its end is wanted
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
	go s.watch(path, started)
	if err := <-started; err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	version, err := s.await(ctx)
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

// privateDir makes the directory whose mode 0700 keeps other users away from a
// Redis without a password.
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

// watch stays on one thread from fork to exit: PR_SET_PDEATHSIG fires when the
// thread that forked ends, not the process, and the runtime ends idle threads.
func (s *server) watch(path string, started chan<- error) {
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
	// Nothing of our environment is its business: not the service manager's
	// socket, not a password meant for another Redis.
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
	if !s.closing.Load() {
		s.log.Error("the private redis-server died; restart locksidecar to get a new one",
			"pid", s.process.Pid, "err", s.err)
	}
	close(s.exited)
}

// await returns the server's version once it answers.
func (s *server) await(ctx context.Context) (version string, err error) {
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

// version asks for INFO server over a connection of its own. It needs no
// client: the request is one line, and so is the answer's part that counts.
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
	return "", fmt.Errorf("INFO says nothing of its version: %w", errors.Join(lines.Err(), net.ErrClosed))
}

func (s *server) stop() {
	s.closing.Store(true)
	// An error from Signal means that it is gone, which is what we want.
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

// tail keeps the end of what the server printed, for the message that says why
// it ended.
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

// suffix is ": " and the last line, or nothing.
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

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A host is a daemon and its way to Redis. All hosts are on one machine and
// share nothing but Redis.
type host struct {
	name    string
	program string
	socket  string
	log     string
	lease   time.Duration
	link    *link

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{}

	wanted atomic.Bool // it should be running: an end now is a crash
}

// start runs the daemon and returns at once.
func (h *host) start() error {
	cmd := exec.Command(h.program, "serve", "--socket", h.socket, "--lease", h.lease.String())
	cmd.Env = append(plainEnv(), "LOCKSIDECAR_REDIS="+h.link.url(), "GOTRACEBACK=all")
	exited, err := launch(cmd, h.log)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.cmd, h.exited = cmd, exited
	h.mu.Unlock()
	h.wanted.Store(true)
	return nil
}

func (h *host) process() (*exec.Cmd, chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cmd, h.exited
}

func (h *host) signal(sig syscall.Signal) {
	if cmd, _ := h.process(); cmd != nil {
		_ = cmd.Process.Signal(sig)
	}
}

// end ends the daemon with a signal and waits until it has ended.
func (h *host) end(ctx context.Context, sig syscall.Signal) error {
	h.wanted.Store(false)
	cmd, exited := h.process()
	if cmd == nil {
		return nil
	}
	h.signal(sig)
	select {
	case <-exited:
	case <-time.After(patience):
		return fmt.Errorf("%s: the daemon did not end within %v of signal %v; its log: %s", h.name, patience, sig, h.log)
	case <-ctx.Done():
		return errInterrupted
	}
	if sig == syscall.SIGTERM && cmd.ProcessState.ExitCode() != 0 {
		return fmt.Errorf("%s: the daemon ended with %v after SIGTERM; its log: %s", h.name, cmd.ProcessState, h.log)
	}
	return nil
}

func (h *host) kill() {
	h.wanted.Store(false)
	if cmd, exited := h.process(); cmd != nil {
		h.signal(syscall.SIGKILL)
		<-exited
	}
}

// crashed tells whether the daemon ended without having been told to.
func (h *host) crashed() bool {
	_, exited := h.process()
	select {
	case <-exited:
		return h.wanted.Load()
	default:
		return false
	}
}

// dial connects a new client as soon as the daemon answers.
func (h *host) dial(ctx context.Context) (*locksidecar.Client, error) {
	for {
		client, err := locksidecar.Dial(ctx, h.socket, locksidecar.WithPatience(0), locksidecar.WithClientName("chaos probe"))
		if err == nil {
			return client, nil
		}
		if h.crashed() {
			return nil, fmt.Errorf("%s: the daemon ended; its log: %s", h.name, h.log)
		}
		if pauseErr := pause(ctx, time.Millisecond); pauseErr != nil {
			return nil, err
		}
	}
}

// serves waits until a new client is granted a lock that nobody else wants, and
// returns when that was, on CLOCK_BOOTTIME.
func (h *host) serves(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := h.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	l, err := client.Lock(ctx, "probe:"+h.name)
	if err != nil {
		return 0, err
	}
	at := protocol.Now()
	return at, l.Unlock()
}

// greets waits until the daemon answers a new client.
func (h *host) greets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := h.dial(ctx)
	if err != nil {
		return err
	}
	return client.Close()
}

// complaints returns what of the daemon's log must never be there.
func (h *host) complaints() string {
	log, err := os.ReadFile(h.log)
	if err != nil {
		return err.Error()
	}
	for _, bad := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
		if at := strings.Index(string(log), bad); at >= 0 {
			return h.log + ":\n" + string(log[at:min(len(log), at+4000)])
		}
	}
	return ""
}

// plainEnv is the environment without settings of ours that a developer may have.
func plainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKSIDECAR_") })
}

// buildDaemon builds the binary that ships.
func buildDaemon(dir string, race bool) (string, error) {
	program := filepath.Join(dir, "locksidecar")
	args := []string{"build", "-o", program}
	if race {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "github.com/locksidecar/locksidecar/cmd/locksidecar")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the daemon: %w\n%s", err, out)
	}
	return program, nil
}

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

// A host is a daemon and its link to Redis. All hosts are on one machine and share only Redis.
type host struct {
	name    string
	program string
	socket  string
	log     string
	lease   time.Duration
	link    *link

	// follows says that its connections to Redis end in an exchange of roles: its daemon is of a
	// version that must not wait at a former master (docs/decisions/0041-origins.md).
	follows bool

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{}

	shouldRun atomic.Bool // if it ends now, it has crashed
	isDead    bool        // it died, and does not come back
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
	h.shouldRun.Store(true)
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

// stop sends the daemon a signal that ends it, and waits until it has ended.
func (h *host) stop(ctx context.Context, sig syscall.Signal) error {
	h.shouldRun.Store(false)
	cmd, exited := h.process()
	if cmd == nil {
		return nil
	}
	h.signal(sig)
	select {
	case <-exited:
	case <-time.After(eventTimeout):
		h.signal(syscall.SIGQUIT) // the log gets the stacks
		<-exited
		return fmt.Errorf("%s: the daemon did not end within %v of signal %v; its log: %s", h.name, eventTimeout, sig, h.log)
	case <-ctx.Done():
		return errInterrupted
	}
	if sig == syscall.SIGTERM && cmd.ProcessState.ExitCode() != 0 {
		return fmt.Errorf("%s: the daemon ended with %v after SIGTERM; its log: %s", h.name, cmd.ProcessState, h.log)
	}
	return nil
}

func (h *host) kill() {
	h.shouldRun.Store(false)
	if cmd, exited := h.process(); cmd != nil {
		h.signal(syscall.SIGKILL)
		<-exited
	}
}

// hasCrashed reports whether the daemon ended without a signal of this program.
func (h *host) hasCrashed() bool {
	_, exited := h.process()
	select {
	case <-exited:
		return h.shouldRun.Load()
	default:
		return false
	}
}

// dial connects a new client as soon as the daemon answers.
func (h *host) dial(ctx context.Context) (*locksidecar.Client, error) {
	for {
		client, err := locksidecar.Dial(ctx, h.socket, locksidecar.WithDialPatience(0), locksidecar.WithReconnectPatience(0), locksidecar.WithClientName("chaos probe"))
		if err == nil {
			return client, nil
		}
		if h.hasCrashed() {
			return nil, fmt.Errorf("%s: the daemon ended; its log: %s", h.name, h.log)
		}
		if pauseErr := pause(ctx, time.Millisecond); pauseErr != nil {
			return nil, err
		}
	}
}

// awaitGrant waits until a new client is granted a lock that no other client wants, and returns
// the time of the grant on CLOCK_BOOTTIME.
func (h *host) awaitGrant(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
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

// awaitAnswer waits until the daemon answers a new client.
func (h *host) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	client, err := h.dial(ctx)
	if err != nil {
		return err
	}
	return client.Close()
}

// logProblems returns an excerpt of the daemon's log if it has a race report or a panic.
func (h *host) logProblems() string {
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

// plainEnv returns the environment without settings of locksidecar.
func plainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKSIDECAR_") })
}

// buildDaemon builds the binary of cmd/locksidecar.
func buildDaemon(dir string) (string, error) {
	program := filepath.Join(dir, "locksidecar")
	if out, err := exec.Command("go", "build", "-o", program, "github.com/locksidecar/locksidecar/cmd/locksidecar").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the daemon: %w\n%s", err, out)
	}
	return program, nil
}

package flashsale

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

//go:embed till.py
var tillScript string

// A process is a child that dies with us, however we end.
type process struct {
	*exec.Cmd
	stderr lastWords
	exited chan struct{} // closed once it was waited for
}

// spawn starts a child. One thread stays with it from fork to exit, because
// Pdeathsig fires when the thread that forked ends.
func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{Cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr = &p.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true, // Ctrl-C reaches the demo alone, which ends its children
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is told by what it said
			close(p.exited)
		}
	}()
	return p, <-started
}

// lives tells whether the process has not ended.
func (p *process) lives() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// end kills the process and waits for it.
func (p *process) end() {
	_ = p.Process.Kill() // it may have ended by itself
	<-p.exited
}

// terminate lets the process stop in its own way, for a while.
func (p *process) terminate() {
	_ = p.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-p.exited:
	case <-time.After(3 * time.Second):
		p.end()
	}
}

func (f *sale) socket() string { return filepath.Join(f.dir, "locksidecar.sock") }

// startSidecar runs the daemon that the tills lock through, the first or the next
// one, and returns when it has reached Redis.
func (f *sale) startSidecar(ctx context.Context) error {
	cmd := exec.Command(f.Sidecar[0], append(slices.Clone(f.Sidecar[1:]), "--socket", f.socket())...)
	// Not on the command line, which every user of the host can read.
	cmd.Env = append(plainEnv(), "LOCKSIDECAR_REDIS="+f.redis.URL())
	var err error
	if f.sidecar, err = spawn(cmd); err != nil {
		f.sidecar = nil
		return err
	}
	for {
		err := pingSidecar(ctx, f.socket())
		if err == nil {
			return nil
		}
		select {
		case <-f.sidecar.exited:
			return fmt.Errorf("the sidecar ended:\n%s", f.sidecar.stderr.String())
		case <-ctx.Done():
			return fmt.Errorf("the sidecar is not ready: %w\n%s", err, f.sidecar.stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// plainEnv is our environment without what would make a sidecar serve otherwise
// than it is told to: the user's own settings, and systemd's wishes.
func plainEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "LOCKSIDECAR_") || strings.HasPrefix(v, "LISTEN_") ||
			strings.HasPrefix(v, "NOTIFY_SOCKET=") || strings.HasPrefix(v, "WATCHDOG_") ||
			strings.HasPrefix(v, "CREDENTIALS_DIRECTORY=")
	})
}

func pingSidecar(ctx context.Context, socket string) error {
	c, err := locksidecar.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	// wait 0 asks Redis at once: that it works is the best sign of readiness.
	l, err := c.TryLock(ctx, "flashsale:ready")
	if err != nil {
		return err
	}
	return l.Unlock()
}

// A till as the demo sees it.
type till struct {
	*process
	lang  string // Go, Python
	stdin io.WriteCloser
	sales int // in the current phase
}

// order sends an order. An error means that the till is gone, which its closed
// stdout tells better.
func (t *till) order(order string) {
	line, err := json.Marshal(tillOrder{Order: order})
	if err != nil {
		panic(err) // a struct of one string
	}
	_, _ = t.stdin.Write(append(line, '\n'))
}

// startTill starts a till; what it reports arrives on reports, at last one of
// kind "gone".
func startTill(lang string, cmd *exec.Cmd, setup tillSetup, reports chan<- tillReport) (*till, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// A pipe of our own: Wait closes that of StdoutPipe under its reader.
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	p, err := spawn(cmd)
	w.Close()
	if err != nil {
		stdout.Close()
		return nil, fmt.Errorf("starting a till in %s: %w", lang, err)
	}
	t := &till{process: p, lang: lang, stdin: stdin}
	go func() {
		defer stdout.Close()
		in := json.NewDecoder(bufio.NewReaderSize(stdout, 64<<10))
		for {
			r := tillReport{till: t}
			if err := in.Decode(&r); err != nil {
				reports <- tillReport{Kind: "gone", till: t}
				return
			}
			reports <- r
		}
	}()
	line, err := json.Marshal(setup)
	if err != nil {
		panic(err) // a struct of strings
	}
	_, _ = stdin.Write(append(line, '\n')) // a till that is gone says so on stdout
	return t, nil
}

func pythonTillCommand(python string) *exec.Cmd {
	return exec.Command(python, "-u", "-c", tillScript)
}

// findPython returns a Python that has what a till needs; the error says what
// is missing where there is none.
func findPython(ctx context.Context) (string, error) {
	candidates := []string{".venv/bin/python", "python3"}
	if p := os.Getenv("LOCKSIDECAR_DEMO_PYTHON"); p != "" {
		candidates = []string{p}
	}
	var why error
	for _, python := range candidates {
		if strings.Contains(python, "/") {
			if abs, err := filepath.Abs(python); err == nil {
				python = abs
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := exec.CommandContext(ctx, python, "-c", "import locksidecar, msgpack, redis").CombinedOutput()
		cancel()
		if err == nil {
			return python, nil
		}
		if why == nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, exec.ErrNotFound) {
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			why = fmt.Errorf("%s: %s", python, lines[len(lines)-1])
		}
	}
	if why == nil {
		why = errors.New("no python3")
	}
	return "", why
}

// lastWords keeps the end of what a process wrote to stderr.
type lastWords struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

const lastWordsSize = 8 << 10

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	if over := l.buf.Len() - lastWordsSize; over > 0 {
		l.buf.Next(over)
	}
	return len(p), nil
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.buf.String())
}

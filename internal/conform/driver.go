package conform

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is one line to the driver.
type command struct {
	N  int    `json:"n"`
	Do string `json:"do"` // open, acquire, cancel, downgrade, release, check, close

	Socket       string `json:"socket,omitempty"`         // open
	As           string `json:"as,omitempty"`             // acquire, downgrade, release, check: the handle
	Name         string `json:"name,omitempty"`           // acquire
	WaitMS       *int64 `json:"wait_ms,omitempty"`        // acquire; absent: forever
	LeaseMS      int64  `json:"lease_ms,omitempty"`       // acquire; absent: the watchdog's
	MaxHoldMS    int64  `json:"max_hold_ms,omitempty"`    // acquire; absent: none
	CrashDelayMS int64  `json:"crash_delay_ms,omitempty"` // acquire; absent: 0
	KeepMS       int64  `json:"keep_ms,omitempty"`        // acquire; absent: 0
	Owner        int    `json:"owner,omitempty"`          // acquire; absent: an owner that never re-enters
	Mode         mode   `json:"mode,omitempty"`           // acquire: of a read/write lock; absent: of another kind
	Permits      uint16 `json:"permits,omitempty"`        // acquire, with of; absent: 1
	Of           uint16 `json:"of,omitempty"`             // acquire: of a semaphore; absent: of a lock
	Target       int    `json:"target,omitempty"`         // cancel: n of an acquire
	Confirm      bool   `json:"confirm,omitempty"`        // release
}

// mode is how a read/write lock is acquired.
type mode string

const (
	shared    mode = "shared"
	exclusive mode = "exclusive"
)

// report is one line from the driver: its first one, the answer to a command, or the news that
// a lock was lost.
type report struct {
	Driver   string    `json:"driver"`
	Features []Feature `json:"features"`

	N      int    `json:"n"`
	OK     bool   `json:"ok"`
	Error  string `json:"error"`  // a code of the protocol, lost, not_held, unconfirmed, or another word
	Reason string `json:"reason"` // of a loss
	Token  string `json:"token"`
	Shared bool   `json:"shared"` // acquire of a read/write lock: whether the hold is shared
	Held   *bool  `json:"held"`   // check
	Lost   string `json:"lost"`   // the handle of a lock that was lost
	Msg    string `json:"msg"`

	line string
}

// driver is the process of a client under test.
type driver struct {
	name     string
	features []Feature
	cmd      *exec.Cmd
	stdin    io.WriteCloser
	lines    chan report // closed when the standard output has ended
	broken   error       // why it ended, if not for its end; read after lines was closed
	stderr   *tail
	exited   chan struct{}
	lastN    int
}

// startPatience is how long a driver may take until its first line.
const startPatience = 30 * time.Second

// startDriver starts a process and awaits its first line.
func startDriver(ctx context.Context, argv []string) (*driver, error) {
	d := &driver{lines: make(chan report, 1024), stderr: new(tail), exited: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	d.cmd.Stderr = d.stderr
	// A group of its own: scenes stop and continue it, with the processes that it has started.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.cmd.Cancel = func() error { return d.signal(syscall.SIGKILL) }
	d.cmd.WaitDelay = time.Second
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	d.stdin = stdin
	output, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	d.cmd.Stdout = stdout
	err = d.cmd.Start()
	stdout.Close()
	if err != nil {
		output.Close()
		return nil, err
	}
	go d.read(output)
	go func() { _ = d.cmd.Wait(); close(d.exited) }()

	select {
	case first, isLine := <-d.lines:
		if isLine && first.Driver != "" {
			d.name, d.features = first.Driver, first.Features
			return d, nil
		}
		d.stop()
		if isLine {
			return nil, fmt.Errorf(`its first line is %s; it must be {"driver": NAME, "features": […]}`, first.line)
		}
		return nil, d.endError()
	case <-time.After(startPatience):
		d.stop()
		return nil, fmt.Errorf(`it printed no line in %v; the first one must be {"driver": NAME, "features": […]}%s`, startPatience, d.stderr)
	case <-ctx.Done():
		d.stop()
		return nil, ctx.Err()
	}
}

func (d *driver) read(output io.ReadCloser) {
	defer output.Close()
	defer close(d.lines)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		r := report{line: lines.Text()}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			d.broken = fmt.Errorf("the driver printed %q, which is not a report: %w", r.line, err)
			return
		}
		d.lines <- r
	}
}

// endError says why the driver's output has ended.
func (d *driver) endError() error {
	if d.broken != nil {
		return d.broken
	}
	select {
	case <-d.exited:
		return fmt.Errorf("the driver ended: %v%s", d.cmd.ProcessState, d.stderr)
	case <-time.After(time.Second):
		return fmt.Errorf("the driver closed its standard output%s", d.stderr)
	}
}

func (d *driver) has(f Feature) bool { return slices.Contains(d.features, f) }

// signal sends a signal to the process and to those that it has started.
func (d *driver) signal(s syscall.Signal) error {
	return syscall.Kill(-d.cmd.Process.Pid, s)
}

// stop ends the process.
func (d *driver) stop() {
	if d == nil {
		return
	}
	d.stdin.Close()
	select {
	case <-d.exited:
	case <-time.After(time.Second):
	}
	_ = d.signal(syscall.SIGKILL)
	<-d.exited
	for range d.lines { // read ends
	}
}

// isStopped reports whether SIGSTOP has taken effect.
func (d *driver) isStopped() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	_, fields, ok := strings.Cut(string(stat), ") ")
	return err == nil && ok && strings.HasPrefix(fields, "T")
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 600

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.text) == 0 {
		return ""
	}
	return "; its standard error: " + strings.TrimSpace(string(t.text))
}

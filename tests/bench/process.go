package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds everything that takes no time on a machine that works.
const patience = 20 * time.Second

// A process is a program that the conductor started, and that does not outlive it.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    tail          // what it wrote for people
	exited chan struct{} // closed when it has ended and been waited for
}

// start starts a program. Its standard output goes to the log, unless the caller
// has taken it.
func start(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.log
	}
	cmd.Stderr = &p.log
	// A group of its own: an interrupt from the terminal is for the conductor, who
	// ends the others. If it is killed, the kernel does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// startPiped is start with the other end of the program's standard output.
func startPiped(name string, cmd *exec.Cmd) (*process, *os.File, error) {
	// Not StdoutPipe: Wait would close it, with what the program said last unread.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = w
	p, err := start(name, cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	return p, r, nil
}

// startServer starts a program that says in one line where it serves.
func startServer(ctx context.Context, name string, cmd *exec.Cmd) (p *process, where string, err error) {
	p, out, err := startPiped(name, cmd)
	if err != nil {
		return nil, "", err
	}
	said := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- strings.TrimSpace(line)
		_, _ = io.Copy(&p.log, out)
		out.Close()
	}()
	select {
	case where = <-said:
		if where != "" {
			return p, where, nil
		}
		p.kill()
		return nil, "", p.died()
	case <-time.After(patience):
		err = fmt.Errorf("%s: did not say where it serves: %s", name, p.log.last())
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.kill()
	return nil, "", err
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// died is the error of a process that ended by itself.
func (p *process) died() error {
	<-p.exited
	return fmt.Errorf("%s ended (%v): %s", p.name, p.cmd.ProcessState, p.log.last())
}

// until asks every few milliseconds whether the process has come to something.
func (p *process) until(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !is() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not %s: %w: %s", p.name, what, ctx.Err(), p.log.last())
		case <-p.exited:
			return p.died()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// cpu is the CPU time that all threads of a process have used.
func (p *process) cpu() (time.Duration, error) {
	var t unix.Timespec
	// A process' clock has its pid in the upper bits, and CPUCLOCK_SCHED in the lower.
	if err := unix.ClockGettime(int32(^p.pid())<<3|2, &t); err != nil {
		return 0, fmt.Errorf("%s: its CPU time: %w", p.name, err)
	}
	return time.Duration(t.Nano()), nil
}

// memory returns the resident bytes and the threads of a process.
func (p *process) memory() (rss, threads float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		var n float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &n); err == nil {
			rss = n * 1024
		} else if _, err := fmt.Sscanf(line, "Threads: %f", &n); err == nil {
			threads = n
		}
	}
	if threads == 0 {
		return 0, 0, errors.New(p.name + " ended")
	}
	return rss, threads, nil
}

// monotonic is CLOCK_MONOTONIC in nanoseconds, the clock of all records.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 2*tailBytes {
		t.text = append(t.text[:0], t.text[len(t.text)-tailBytes:]...)
	}
	return len(p), nil
}

// last returns the last lines, in one.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.text), []byte("\n"))
	if len(lines) > 4 {
		lines = lines[len(lines)-4:]
	}
	if len(lines) == 1 && len(lines[0]) == 0 {
		return "it wrote nothing"
	}
	return string(bytes.Join(lines, []byte(" | ")))
}

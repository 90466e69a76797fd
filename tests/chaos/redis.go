package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// A server is a private redis-server on a Unix socket that keeps nothing on disk.
type server struct {
	*redis.Client
	dir    string
	log    string
	exited chan struct{} // closed when the process has ended
	cmd    *exec.Cmd
}

func startServer(ctx context.Context, dir, log string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	s := &server{dir: dir, log: log}
	s.Client = redis.NewClient(&redis.Options{
		Network: "unix", Addr: s.socket(), ClientName: "conductor", DisableIdentity: true,
		DialTimeout: time.Second, ReadTimeout: time.Second, MaxRetries: -1,
	})
	return s, s.start(ctx)
}

func (s *server) socket() string { return filepath.Join(s.dir, "redis.sock") }

// start starts the server, also again, and returns when it answers.
func (s *server) start(ctx context.Context) error {
	cmd := exec.Command("redis-server", "--dir", s.dir, "--unixsocket", s.socket(), "--port", "0",
		"--save", "", "--daemonize", "no", "--repl-diskless-sync-delay", "0")
	exited, err := launch(cmd, s.log)
	if err != nil {
		return err
	}
	s.cmd, s.exited = cmd, exited
	return waitUntil(ctx, eventTimeout, "redis-server answers", func() bool { return s.Ping(ctx).Err() == nil })
}

func (s *server) signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	<-s.exited
}

func (s *server) close() {
	s.Close()
	if s.cmd != nil {
		s.kill()
	}
}

// isReplicaInSync reports whether the server is a replica that is connected to its master.
func (s *server) isReplicaInSync(ctx context.Context) bool {
	info, err := s.Info(ctx, "replication").Result()
	return err == nil && strings.Contains(info, "role:slave") && strings.Contains(info, "master_link_status:up")
}

func (s *server) isMaster(ctx context.Context) bool {
	info, err := s.Info(ctx, "replication").Result()
	return err == nil && strings.Contains(info, "role:master")
}

// replicate makes the server a replica of the server to which the link leads.
func (s *server) replicate(ctx context.Context, l *link) error {
	return s.Do(ctx, "REPLICAOF", "127.0.0.1", l.port()).Err()
}

// promote makes the server a master.
func (s *server) promote(ctx context.Context) error {
	return s.Do(ctx, "REPLICAOF", "NO", "ONE").Err()
}

// pauseWrites has the server delay all writes of clients, for a minute at most.
func (s *server) pauseWrites(ctx context.Context) error {
	return s.Do(ctx, "CLIENT", "PAUSE", "60000", "WRITE").Err()
}

func (s *server) resumeWrites(ctx context.Context) error {
	return s.Do(ctx, "CLIENT", "UNPAUSE").Err()
}

// offset returns how much of the replication stream the server has, or -1.
func (s *server) offset(ctx context.Context) int64 {
	info, err := s.Info(ctx, "replication").Result()
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(info, "\r\nmaster_repl_offset:")
	text, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// launch starts a process whose output goes to a file, and which does not
// outlive this one.
func launch(cmd *exec.Cmd, log string) (exited chan struct{}, err error) {
	out, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// Ctrl-C interrupts only the conductor, which then ends its processes.
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return exited, nil
}

// eventTimeout bounds the wait for an event that must happen. It measures no speed.
const eventTimeout = 30 * time.Second

// waitUntil polls cond until it is true.
func waitUntil(ctx context.Context, limit time.Duration, what string, cond func() bool) error {
	for end := time.Now().Add(limit); !cond(); {
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", limit, what)
		}
	}
	return nil
}

var errInterrupted = errors.New("interrupted")

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errInterrupted
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// server is a redis-server of our own, on a port of the loopback interface.
type server struct {
	addr    string
	version string
	cmd     *exec.Cmd
	dir     string
	admin   *redis.Client
}

// startRedis starts one. A port that is free may be another server's by the time it is used: then it tries another one.
func startRedis(ctx context.Context) (s *server, err error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("redis-server is not installed: apt-get install redis-server")
	}
	for range 5 {
		if s, err = tryRedis(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

func tryRedis(ctx context.Context) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{addr: l.Addr().String()}
	l.Close()
	if s.dir, err = os.MkdirTemp("", "bench-clients-"); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--dir", s.dir, "--save", "", "--appendonly", "no", "--daemonize", "no")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		os.RemoveAll(s.dir)
		return nil, err
	}
	s.admin = redis.NewClient(&redis.Options{Addr: s.addr, Protocol: 2, PoolSize: 1, PipelinePoolSize: -1, MaxRetries: -1, DisableIdentity: true})
	for deadline := time.Now().Add(30 * time.Second); ; {
		info, err := s.admin.Info(ctx, "server").Result()
		switch pid := field(info, "process_id:"); {
		case err == nil && pid == strconv.Itoa(s.cmd.Process.Pid):
			s.version = field(info, "redis_version:")
			return s, nil
		case err == nil:
			err = fmt.Errorf("%s is the port of another server", s.addr)
			deadline = time.Time{}
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			s.stop()
			return nil, fmt.Errorf("redis-server did not start: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *server) stop() {
	s.admin.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	os.RemoveAll(s.dir)
}

// scripts is how many scripts Redis has run.
func (s *server) scripts(ctx context.Context) (int64, error) {
	info, err := s.admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	calls := field(info, "cmdstat_evalsha:calls=")
	if calls == "" {
		return 0, nil
	}
	n, _, _ := strings.Cut(calls, ",")
	return strconv.ParseInt(n, 10, 64)
}

// field is the rest of the line of INFO that begins with prefix.
func field(info, prefix string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), prefix); ok {
			return value
		}
	}
	return ""
}

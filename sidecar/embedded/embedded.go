// Package embedded starts a Redis of one's own, for a host that has none: a
// private redis-server where that program is installed, otherwise one inside
// this process.
//
// It keeps nothing on disk and ends with this process, so it serves trials,
// tests and single hosts. Locks that several hosts share need one Redis that
// all of them reach.
package embedded

import (
	"context"
	"log/slog"
	"os/exec"
)

// Redis is a running Redis that belongs to this process.
type Redis struct {
	url  string
	kind string
	stop func()
}

// URL is where to connect. It may contain a password: print Kind instead.
func (r *Redis) URL() string { return r.url }

// Kind says for people what is running: "redis-server 7.0.15 (private)" or
// "in-process".
func (r *Redis) Kind() string { return r.kind }

// Close stops it and removes what it left behind. What it held is gone. It may
// be called once.
func (r *Redis) Close() { r.stop() }

// Option changes what Start does.
type Option func(*options)

type options struct {
	inProcess bool
	path      string
}

// InProcess makes Start ignore an installed redis-server.
func InProcess() Option { return func(o *options) { o.inProcess = true } }

// Start returns a Redis that answers. It prefers redis-server from $PATH or
// /usr/bin; one that does not start is reported to log, and the in-process one
// takes its place. ctx bounds the start only.
func Start(ctx context.Context, log *slog.Logger, opts ...Option) (*Redis, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if !o.inProcess {
		if path := findServer(o.path); path != "" {
			r, err := startServer(ctx, log, path)
			if err == nil {
				return r, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			log.Warn("the installed redis-server does not start; using the one inside this process, which is slower",
				"path", path, "err", err)
		}
	}
	return startInProcess()
}

// findServer looks in /usr/bin too, because a service manager's $PATH may be
// short.
func findServer(name string) string {
	if name == "" {
		name = "redis-server"
	}
	for _, candidate := range []string{name, "/usr/bin/redis-server"} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	return ""
}

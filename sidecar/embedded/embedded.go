// Package embedded starts a private Redis, for a host that has none: a redis-server if that
// program is installed, otherwise a Redis in this process.
//
// It stores nothing on disk and ends with this process, so it is for trials, tests and single
// hosts. Hosts that share locks need one Redis that all of them reach.
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

// URL returns the URL to connect to. It may contain a password: print Kind instead.
func (r *Redis) URL() string { return r.url }

// Kind returns what is running, for people: "redis-server 7.0.15 (private)" or "in-process".
func (r *Redis) Kind() string { return r.kind }

// Close stops the Redis, whose data is lost, and removes its files. It may be called once.
func (r *Redis) Close() { r.stop() }

// Option changes what Start does.
type Option func(*options)

type options struct {
	inProcess bool
	path      string
}

// InProcess makes Start ignore an installed redis-server.
func InProcess() Option { return func(o *options) { o.inProcess = true } }

// Start returns a Redis that answers. It starts redis-server from $PATH or /usr/bin. If there is
// none, or if it does not start, which is logged, the Redis is in this process. ctx bounds only
// the start.
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

// findServer searches $PATH, and /usr/bin, because the $PATH of a service may be short. "": there
// is no redis-server.
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

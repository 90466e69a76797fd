package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/monitor"
)

type serveCmd struct {
	Config    string `help:"Read settings from this TOML file, and then from the files *.toml in the directory conf.d beside it; the keys are the flags below, with underscores. [$$LOCKSIDECAR_CONFIG]" placeholder:"FILE"`
	Check     bool   `xor:"mode" help:"Check the settings and end, with exit code 64 if the daemon would refuse them. A daemon that runs is not disturbed."`
	SkipRedis bool   `help:"With --check: do not connect to Redis."`
	Print     bool   `xor:"mode" help:"Print the settings, each with its place, and end. Passwords are left out."`
	JSON      bool   `help:"With --print: print a JSON object."`
	settings  `embed:""`

	resolver *settingsResolver
}

func (serveCmd) Help() string {
	return `Serves until SIGTERM or SIGINT. Redis need not be there at the start.
A stop, or a kill, frees no lock: the next daemon finds in the state file who holds what, and goes on.

Each setting is taken from its flag, its variable, the settings files or its default: the first that has it.
Of the settings files, those in conf.d override the file of --config, each of them those before it by name. Hidden files
and names that do not end in .toml are not read.
Only settings files can have a policy: [[policy]] entries say which processes may lock what, and how much of it. Those of
all files count, in the order of the files.
The Redis URL may also come as the systemd credential "redis-url", and the files for TLS as "redis-ca", "redis-cert"
and "redis-key".
GOMAXPROCS and GOGC are Go's own; without them, serve runs on two processors, collects garbage at 40 %, and returns
free memory to the system after ten seconds in which it did little.

--check looks at settings, Redis URL, group, directories and files, as the user that runs it and with the
environment that it has. If a daemon runs that can use its Redis, --check connects to Redis with these settings, for 4 s
at most: it refuses settings with which the next daemon would lose the locks, because it could not connect, or would
find other data (another server, database or key prefix). --skip-redis leaves that out.
--print prints a settings file with the same effect, and behind each value the place that it comes from. Run it as the
daemon runs: with its user, command line and environment. Its hash is the same on two hosts if they have the same
settings; it leaves out host_name, metrics, users and passwords. locksidecar metrics | grep settings_info shows that of
the daemon: if it differs, the settings were changed after the start of the daemon.
Fields of --json:

    version, hash, read, not_read (lists of files)
    settings: a list of key, value, origin ("default", "file", "variable" or "flag"), [where, note]
    policy: a list of entry (an object with the keys that it has), where

systemctl reload locksidecar runs --check as the daemon would, with the socket of the socket unit if there is one, and
restarts the daemon if nothing is wrong.

Examples:

    locksidecar serve --embedded --socket /tmp/locks.sock
    locksidecar serve --config /etc/locksidecar/locksidecar.toml
    locksidecar serve --check --config /etc/locksidecar/locksidecar.toml
    locksidecar serve --print --config /etc/locksidecar/locksidecar.toml
    LOCKSIDECAR_REDIS=redis://app:secret@redis.example:6379/0 locksidecar serve

` + exitTable
}

// BeforeResolve reads the settings file in time for its values to be used.
func (c *serveCmd) BeforeResolve(ctx *kong.Context) error {
	path := os.Getenv("LOCKSIDECAR_CONFIG")
	for _, flag := range ctx.Flags() {
		if flag.Name == "config" {
			if v, _ := ctx.FlagValue(flag).(string); v != "" {
				path = v
			}
		}
	}
	r, err := newSettingsResolver(path)
	if err != nil {
		return err
	}
	ctx.AddResolver(r)
	c.resolver = r
	return nil
}

// config returns the settings as the sidecar takes them, without its Redis.
func (s *settings) config() sidecar.Config {
	return sidecar.Config{
		Socket:          s.Socket,
		SocketMode:      os.FileMode(s.SocketMode),
		SocketGroup:     s.SocketGroup,
		RedisCA:         s.RedisCA,
		RedisCert:       s.RedisCert,
		RedisKey:        s.RedisKey,
		RedisServerName: s.RedisServerName,
		KeyPrefix:       s.KeyPrefix,
		Lease:           time.Duration(s.Lease),
		TokenExpiry:     time.Duration(s.TokenExpiry),
		Replicas:        int(s.Durability),
		Linger:          time.Duration(s.Linger),
		NoLinger:        s.Linger == 0,
		Turn:            s.Turn.length,
		Alternate:       !s.Turn.isAuto && s.Turn.length == 0,
		Fair:            s.Fair,
		State:           s.State,
		ResumeWithin:    time.Duration(s.ResumeWithin),
		ResumeUnseen:    time.Duration(s.ResumeUnseen),
		HostName:        s.HostName,
		OtherHosts:      sidecar.OtherHosts(s.OtherHosts),
		MaxSessions:     s.MaxSessions,
		MaxLocks:        s.MaxLocks,
		MaxHolds:        s.MaxHolds,
		MaxWaiters:      s.MaxWaiters,
		MaxNewNames:     s.MaxNewNames,
		Metrics:         s.Metrics,
		MetricsNames:    s.MetricsNames,
		Version:         locksidecar.Version,
	}
}

// read returns the configuration of the sidecar and its Redis.
func (c *serveCmd) read(parsed *kong.Context) (cfg sidecar.Config, target redisTarget, err error) {
	c.resolver.noteFlags(parsed)
	if err = c.checkZeros(c.resolver); err != nil {
		return cfg, target, err
	}
	if target, err = chooseRedis(&c.settings, c.resolver); err != nil {
		return cfg, target, err
	}
	if target.embedded && c.Durability > 0 {
		return cfg, target, fmt.Errorf("%s needs a Redis with replicas, and %s starts one without; remove one of the two", c.resolver.where("durability"), c.resolver.where("embedded"))
	}
	cfg = c.config()
	cfg.Redis = target.url
	if target.file != "" {
		cfg.ReadRedis = func() (string, error) {
			again, err := readRedis(target.file, "the file")
			return again.url, err
		}
	}
	cfg.Policy = c.resolver.policy
	if err = c.resolver.placeFaults(sidecar.CheckPolicy(cfg.Policy)); err != nil {
		return cfg, target, err
	}
	for _, file := range []struct {
		credential string
		path       *string
	}{{"redis-ca", &cfg.RedisCA}, {"redis-cert", &cfg.RedisCert}, {"redis-key", &cfg.RedisKey}} {
		if *file.path == "" {
			if *file.path, err = credential(file.credential); err != nil {
				return cfg, target, err
			}
		}
	}
	if cfg.Listener, err = inheritedListener(); err != nil {
		return cfg, target, err
	}
	return cfg, target, nil
}

func (c *serveCmd) Run(ctx context.Context, parsed *kong.Context, out io.Writer) error {
	cfg, target, err := c.read(parsed)
	if err != nil {
		return coded{exitUsage, err}
	}
	if c.JSON && !c.Print {
		return coded{exitUsage, errors.New("--json is for --print only")}
	}
	if c.Print {
		if v := c.view(&cfg, &target); c.JSON {
			return v.printJSON(out)
		} else {
			_, err = io.WriteString(out, v.text())
			return err
		}
	}
	if c.Check {
		return c.check(ctx, cfg, target, out)
	}
	hash := c.hash(&target)
	defer runtime.KeepAlive(tuneRuntime())
	direct := c.logger(os.Stderr, isJournal(os.Stderr))
	stderr := newAsyncWriter(os.Stderr, direct)
	defer stderr.close()
	log := slog.New(newAuditHandler(stderr, func(w io.Writer) slog.Handler { return c.logger(w, isJournal(os.Stderr)).Handler() }))
	cfg.Log = log
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// After the first signal, a second one has its default action: it kills the program.
	context.AfterFunc(ctx, stop)
	startReturningMemory(ctx, os.Getenv)
	defer ignoreHangups(log)()

	if target.embedded {
		redis, err := embedded.Start(ctx, log)
		if err != nil {
			return err
		}
		defer redis.Close()
		cfg.Redis, target.shown = redis.URL(), redis.Kind()
	}
	server, err := sidecar.Listen(cfg)
	var refused *sidecar.SettingError
	if errors.As(err, &refused) {
		return coded{exitUsage, c.resolver.placeValues(err)}
	}
	if err != nil {
		return err
	}
	log.Info("serving", "socket", server.Addr(), "redis", target.shown, "lease", c.Lease, "version", locksidecar.Version, "build", build(), "settings", hash, "pid", os.Getpid())

	notified := make(chan struct{})
	go func() {
		defer close(notified)
		newNotifier(log).run(ctx, server)
	}()
	shown := monitor.New(server, monitor.Build{Version: locksidecar.Version, Commit: build(), Settings: hash})
	server.SetMetrics(shown.Metrics)
	monitored := make(chan struct{})
	go func() {
		defer close(monitored)
		if l := server.MetricsListener(ctx); l != nil {
			log.Info("serving metrics", "address", l.Addr())
			shown.Serve(ctx, l)
		}
	}()
	err = server.Serve(ctx)
	stop()
	<-notified
	<-monitored
	if err != nil {
		return err
	}
	log.Info("stopped; locks that are held stay so")
	return nil
}

// redisCheckTimeout bounds how long --check tries to connect to Redis.
const redisCheckTimeout = 4 * time.Second

// checkRedis returns why the daemon that runs at a socket should not be replaced by one with cfg:
// it can use its Redis, and the next one could not, or would find other data.
func checkRedis(ctx context.Context, cfg sidecar.Config, socket string) (risk string, err error) {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	running, err := locksidecar.Dial(asking, socket)
	if err != nil {
		return "", nil // no daemon runs
	}
	defer running.Close()
	health, err := running.Health(asking)
	if err != nil || health.Redis != "ok" && !health.Degraded {
		return "", nil // it is not worse afterwards
	}
	const skip = "; the daemon that runs is connected, and would lose its locks; --skip-redis leaves this check out"
	trying, cancel := context.WithTimeout(ctx, redisCheckTimeout)
	defer cancel()
	found, err := cfg.TryRedis(trying)
	if err != nil {
		return "", coded{exitUnavailable, fmt.Errorf("these settings do not lead to Redis: %w%s", err, skip)}
	}
	database := func(address string) string { return address[strings.LastIndexByte(address, '/')+1:] }
	switch {
	case found.RunID != "" && health.RedisRunID != "" && found.RunID != health.RedisRunID:
		err = fmt.Errorf("the settings lead to another server, at %s (run id %s), than that of the daemon, at %s (run id %s)", found.Address, found.RunID, health.RedisAddress, health.RedisRunID)
	case database(found.Address) != database(health.RedisAddress):
		err = fmt.Errorf("the settings lead to another database, %s, than that of the daemon, at %s", found.Address, health.RedisAddress)
	case cfg.KeyPrefix != health.KeyPrefix:
		err = fmt.Errorf("the key prefix %q is another one than %q of the daemon", cfg.KeyPrefix, health.KeyPrefix)
	default:
		return found.Risk, nil
	}
	return "", coded{exitUsage, fmt.Errorf("%w%s", err, skip)}
}

// check is serve --check.
func (c *serveCmd) check(ctx context.Context, cfg sidecar.Config, target redisTarget, out io.Writer) error {
	socket, inherited := socketOfMainProcess()
	var err error
	if cfg.Listener == nil && inherited {
		err = cfg.CheckInherited(socket)
	} else {
		if socket = cfg.Socket; cfg.Listener != nil {
			socket = cfg.Listener.Addr().String()
		}
		err = cfg.Check()
	}
	if err != nil {
		return coded{exitUsage, c.resolver.placeValues(err)}
	}
	risk := ""
	if !target.embedded && !c.SkipRedis {
		if risk, err = checkRedis(ctx, cfg, socket); err != nil {
			return err
		}
	}
	redis := cmp.Or(target.shown, "embedded")
	if c.KeyPrefix != "" {
		redis += fmt.Sprintf(", key prefix %q", c.KeyPrefix)
	}
	_, err = fmt.Fprintf(out, "the settings can work: socket %s, Redis %s\n", socket, redis)
	if err == nil && risk != "" {
		_, err = fmt.Fprintf(out, "warning: %s\n", display.Printable(risk))
	}
	return err
}

// ignoreHangups logs each SIGHUP, whose default action would end the daemon. Other daemons read
// their settings again on SIGHUP.
func ignoreHangups(log *slog.Logger) (stop func()) {
	const line = "SIGHUP has no effect; to use new settings, restart the daemon (systemctl reload locksidecar): no lock is lost"
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range hangups {
			log.Warn(line)
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(hangups)
		<-done
	}
}

// tuneRuntime sets GOGC and GOMAXPROCS unless the environment does. The caller keeps the
// ballast reachable.
func tuneRuntime() (ballast []byte) {
	if os.Getenv("GOGC") == "" {
		// A hundred thousand held locks are some 40 MB of live memory. With Go's default
		// the heap would grow to twice the live memory before a collection.
		debug.SetGCPercent(40)
		// With little live memory, about a thousand pairs of acquire and release would
		// start a collection. The ballast counts as live memory, and needs no pages,
		// because it is never written.
		ballast = make([]byte, 8<<20)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		// The loop runs on one goroutine at a time, so idle processors would only search for
		// work. With GOMAXPROCS=8 on two cores, a pair of acquire and release took a third
		// more CPU time than with 2. With 1 it took up to a quarter less, but one client
		// that sends requests all the time made others wait for tens of milliseconds.
		runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0)))
	}
	return ballast
}

// logger returns a logger that writes to w; prefixed: each line begins with its priority.
func (c *serveCmd) logger(w io.Writer, prefixed bool) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // an enum: it cannot fail
	opts := &slog.HandlerOptions{Level: level}
	handler := func(w io.Writer) slog.Handler {
		if c.LogFormat == "json" {
			return slog.NewJSONHandler(w, opts)
		}
		return slog.NewTextHandler(w, opts)
	}
	if prefixed {
		return slog.New(newPriorities(w, handler))
	}
	return slog.New(handler(w))
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/monitor"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	daemonsettings "github.com/locksidecar/locksidecar/sidecar/settings"
)

type serveCmd struct {
	Config    string `help:"Read settings from this TOML file, and then from the files *.toml in the directory conf.d beside it; the keys are the flags below, with underscores. [$$LOCKSIDECAR_CONFIG]" placeholder:"FILE"`
	Check     bool   `xor:"mode" help:"Check the settings and end, with exit code 64 if the daemon would refuse them. A daemon that runs is not disturbed."`
	SkipRedis bool   `xor:"redis" help:"With --check: do not connect to Redis."`
	Connect   bool   `xor:"redis" help:"With --check: connect to Redis also if no daemon runs, as before the first start."`
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
find other data (another server, database or key prefix). A master of a Cluster that the running daemon cannot use
either is named, and permitted. --connect connects also if no daemon runs, and then all masters must answer.
--skip-redis never connects. The last line says whether Redis was asked.
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
		Linger:          moment.SpanOf(time.Duration(s.Linger)),
		Turn:            s.Turn.Span,
		Fair:            s.Fair,
		State:           s.State,
		ResumeWithin:    time.Duration(s.ResumeWithin),
		ResumeUnseen:    time.Duration(s.ResumeUnseen),
		HostName:        s.HostName,
		OtherHosts:      otherhosts.Setting(s.OtherHosts),
		MaxSessions:     s.MaxSessions,
		MaxLocks:        s.MaxLocks,
		MaxHolds:        s.MaxHolds,
		MaxWaiters:      s.MaxWaiters,
		MaxNewNames:     s.MaxNewNames,
		Metrics:         s.Metrics,
		MetricsNames:    s.MetricsNames,
		ExpectedHold:    s.ExpectedHold,
		Version:         locksidecar.Version,
		Build:           build(),
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
	var to io.Writer = os.Stderr
	inJournal := isJournal(os.Stderr)
	if inJournal {
		to = &journalWriter{stream: os.Stderr}
	}
	stderr := newAsyncWriter(to, c.logger(to, inJournal))
	defer stderr.close()
	log := slog.New(newAuditHandler(stderr, func(w io.Writer) slog.Handler { return c.logger(w, inJournal).Handler() }))
	cfg.Log = log
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// After the first signal, a second one has its default action: it kills the program.
	context.AfterFunc(ctx, stop)
	startReturningMemory(ctx, os.Getenv)
	defer ignoreHangups(log)()

	redis.SetLogger(libraryLog{log})
	if target.embedded {
		own, err := embedded.Start(ctx, log)
		if err != nil {
			return err
		}
		defer own.Close()
		cfg.Redis, target.shown = own.URL(), own.Kind()
	}
	server, err := sidecar.Listen(cfg)
	var refused *daemonsettings.Error
	if errors.As(err, &refused) {
		return coded{exitUsage, c.resolver.placeValues(err)}
	}
	if err != nil {
		return err
	}
	log.Info("serving", "socket", server.Addr(), "redis", target.shown, "lease", time.Duration(c.Lease), "version", locksidecar.Version, "build", build(), "settings", hash, "daemon_pid", os.Getpid())

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
			log.Info("serving metrics", "address", l.Addr().String())
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

// libraryLog puts what the client library of Redis prints into the log of the daemon, which has the consequences as
// lines of its own: for --log-level debug.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, "the Redis library: "+fmt.Sprintf(format, args...))
}

// redisCheckTimeout bounds how long --check tries to connect to Redis.
const redisCheckTimeout = 4 * time.Second

// checkRedis connects to Redis with cfg, if mustConnect, or if a daemon runs at a socket that can use its
// Redis. It returns what it found and what Redis risks, for people; or why that daemon should not be replaced by one with cfg,
// which could not use Redis, or would find other data; or why Redis cannot be used.
func checkRedis(ctx context.Context, cfg sidecar.Config, socket string, mustConnect bool) (found, risk string, err error) {
	asking, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	running, err := locksidecar.Dial(asking, socket)
	var health locksidecar.Health
	if err == nil {
		defer running.Close()
		health, err = running.Health(asking)
	}
	serves := err == nil && (health.Redis == "ok" || health.Degraded)
	skip := "; the daemon that runs is connected, and would lose its locks; --skip-redis leaves this check out"
	switch {
	case serves:
	case mustConnect:
		skip = ""
	case running == nil:
		return "was not asked, because no daemon runs; --connect asks it", "", nil
	default:
		return "was not asked, because the daemon that runs cannot use its own; --connect asks it", "", nil
	}
	trying, cancel := context.WithTimeout(ctx, redisCheckTimeout)
	defer cancel()
	var shards []locksidecar.ShardStatus // of the daemon that runs
	worse := func(to *sidecar.FoundRedis) error {
		if serves && to.Nodes != nil {
			asking, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if status, err := running.Status(asking); err == nil {
				shards = status.Shards
			}
		}
		return firstWorse(to.Down, shards)
	}
	to, err := cfg.TryRedis(trying, func(to *sidecar.FoundRedis) bool { return worse(to) == nil })
	if err != nil {
		return "", "", coded{exitUnavailable, fmt.Errorf("these settings do not lead to Redis: %w%s", err, skip)}
	}
	if err := worse(&to); err != nil {
		return "", "", coded{exitUnavailable, fmt.Errorf("these settings do not lead to all of Redis: %w%s", err, skip)}
	}
	found = "answers"
	for _, address := range slices.Sorted(maps.Keys(to.Down)) {
		found += fmt.Sprintf("; the daemon that runs cannot use this either: %v", to.Down[address])
	}
	if serves {
		if err := otherData(cfg, &to, &health, shards); err != nil {
			return "", "", coded{exitUsage, fmt.Errorf("%w%s", err, skip)}
		}
	}
	return found, to.Risk, nil
}

// firstWorse returns why the first master cannot be used that a daemon with these shards uses; nil: there is none.
func firstWorse(down map[string]error, shards []locksidecar.ShardStatus) error {
	for _, address := range slices.Sorted(maps.Keys(down)) {
		isDown := func(s locksidecar.ShardStatus) bool { return s.Address == address && s.Redis != "ok" && !s.Degraded }
		if !slices.ContainsFunc(shards, isDown) {
			return down[address]
		}
	}
	return nil
}

// otherData returns how the locks that cfg leads to are others than those of a daemon that runs; nil: they
// are the same. shards are those of the daemon.
func otherData(cfg sidecar.Config, to *sidecar.FoundRedis, health *locksidecar.Health, shards []locksidecar.ShardStatus) error {
	database := func(address string) string { return address[strings.LastIndexByte(address, '/')+1:] }
	isSame := to.RunID == "" || health.RedisRunID == "" || to.RunID == health.RedisRunID ||
		// The smallest id of a Cluster changes when nodes come and go.
		to.Nodes[health.RedisRunID] || slices.ContainsFunc(shards, func(s locksidecar.ShardStatus) bool { return slices.Contains(to.Masters, s.Address) })
	switch {
	case !isSame:
		return fmt.Errorf("the settings lead to another server, at %s (run id %s), than that of the daemon, at %s (run id %s)", to.Address, to.RunID, health.RedisAddress, health.RedisRunID)
	case database(to.Address) != database(health.RedisAddress):
		return fmt.Errorf("the settings lead to another database, %s, than that of the daemon, at %s", to.Address, health.RedisAddress)
	case cfg.KeyPrefix != health.KeyPrefix:
		return fmt.Errorf("the key prefix %q is another one than %q of the daemon", cfg.KeyPrefix, health.KeyPrefix)
	}
	return nil
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
	redis, risk := cmp.Or(target.shown, "embedded"), ""
	if c.KeyPrefix != "" {
		redis += fmt.Sprintf(", key prefix %q", c.KeyPrefix)
	}
	switch {
	case target.embedded:
	case c.SkipRedis:
		redis += ", which was not asked (--skip-redis)"
	default:
		var found string
		if found, risk, err = checkRedis(ctx, cfg, socket, c.Connect); err != nil {
			return err
		}
		redis += ", which " + found
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

// inSeconds makes seconds of a duration, with the unit in the key. In JSON, slog writes nanoseconds without a unit.
func inSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.Float64(a.Key+"_seconds", a.Value.Duration().Seconds())
	}
	return a
}

// logger returns a logger that writes to w; inJournal: entries for a journalWriter.
func (c *serveCmd) logger(w io.Writer, inJournal bool) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // an enum: it cannot fail
	opts := &slog.HandlerOptions{Level: level}
	handler := func(w io.Writer) slog.Handler {
		if c.LogFormat == "json" {
			opts.ReplaceAttr = inSeconds
			return slog.NewJSONHandler(w, opts)
		}
		return slog.NewTextHandler(w, opts)
	}
	if inJournal {
		return slog.New(newJournalHandler(w, handler))
	}
	return slog.New(handler(w))
}

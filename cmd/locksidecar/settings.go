package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	daemonsettings "github.com/locksidecar/locksidecar/sidecar/settings"
)

// settings are the daemon's. Each has one name in three spellings: the flag
// --max-locks, the variable $LOCKSIDECAR_MAX_LOCKS and the file's key max_locks.
// A flag beats a variable, a variable beats the file, the file beats the default.
type settings struct {
	Socket          string   `toml:"socket" default:"${socket}" placeholder:"PATH" help:"Where clients connect (default: ${default})."`
	SocketMode      fileMode `toml:"socket_mode" default:"${socket_mode}" placeholder:"OCTAL" help:"File mode of the socket; who can write to it can lock (default: ${default})."`
	SocketGroup     string   `toml:"socket_group" placeholder:"GROUP" help:"Group of the socket (default: that of the daemon)."`
	Redis           string   `toml:"redis" placeholder:"URL" help:"redis://, rediss://, redis+sentinel://, redis+cluster:// or unix:// URL (default: ${redis}). As a flag it must not contain a password."`
	RedisFile       string   `toml:"redis_file" placeholder:"PATH" help:"A file with the URL, so that its password stands nowhere else."`
	RedisCA         string   `toml:"redis_ca" placeholder:"FILE" help:"For rediss://: PEM file of the authorities that sign the certificate of Redis (default: those of the host)."`
	RedisCert       string   `toml:"redis_cert" placeholder:"FILE" help:"For rediss://: PEM file of the certificate that Redis asks for."`
	RedisKey        string   `toml:"redis_key" placeholder:"FILE" help:"The key of that certificate."`
	RedisServerName string   `toml:"redis_server_name" placeholder:"NAME" help:"For rediss://: the name in the certificate of Redis (default: the host of the URL)."`
	Embedded        bool     `toml:"embedded" help:"Use a private Redis that ends with the daemon: for trials and tests."`
	KeyPrefix       string   `toml:"key_prefix" placeholder:"PREFIX" help:"Put this before the name of each lock in Redis, as a NameMapper of Redisson does (default: none). Hosts share locks only if they have the same."`
	Lease           duration `toml:"lease" default:"${lease}" placeholder:"DURATION" help:"How long Redis keeps a lock that is not renewed (default: ${default})."`
	TokenExpiry     duration `toml:"token_expiry" placeholder:"DURATION" help:"Delete a lock's token counter this long after its last use (default: never). Not if a Redisson program draws fencing tokens."`
	Durability      durable  `toml:"durability" default:"none" placeholder:"none|replicas:N" help:"Grant a lock, and renew it, only when N replicas of Redis have confirmed that: then a failover to one of them makes no second owner (default: ${default}). All hosts should have the same."`
	Linger          duration `toml:"linger" default:"${linger}" placeholder:"DURATION" help:"How long, at most, a lock that this host uses again and again stays its own after a release, unless another host waits; up to 20ms (default: ${default}; 0: not at all)."`
	Turn            turn     `toml:"turn" default:"auto" placeholder:"DURATION" help:"How long processes of this host hand a lock to each other while another host waits; up to 1s (default: ${default}, two round trips to Redis; 0: one process, then the next host)."`
	Fair            []string `toml:"fair" placeholder:"PATTERN,…" help:"Strict order between hosts for these locks: first come, first served, and no turns. A name, or its beginning and * (default: none)."`
	State           string   `toml:"state" placeholder:"PATH" help:"File in which the next daemon finds who holds what (default: the socket's path and .state; none: a restart loses all locks)."`
	ResumeWithin    duration `toml:"resume_within" default:"${resume_within}" placeholder:"DURATION" help:"After a restart, how long to renew for a living process that does not come back (default: ${default})."`
	ResumeUnseen    duration `toml:"resume_unseen" placeholder:"DURATION" help:"The same for a process that the daemon cannot watch, in another pid namespace for instance (default: the lease)."`
	HostName        string   `toml:"host_name" placeholder:"NAME" help:"Name of this host, for people on other hosts (default: that of the kernel)."`
	OtherHosts      string   `toml:"other_hosts" default:"show" enum:"none,show,force-release" placeholder:"WHAT" help:"What other hosts may do here, through Redis: show locks and their holders, also force-release, or none (default: ${default})."`
	MaxSessions     int      `toml:"max_sessions" default:"${max_sessions}" placeholder:"N" help:"Clients at one time (default: ${default})."`
	MaxLocks        int      `toml:"max_locks" default:"${max_locks}" placeholder:"N" help:"Names held or waited for, in all (default: ${default})."`
	MaxHolds        int      `toml:"max_holds" default:"${max_holds}" placeholder:"N" help:"Locks held by one client (default: ${default})."`
	MaxWaiters      int      `toml:"max_waiters" default:"${max_waiters}" placeholder:"N" help:"Requests of one client that wait (default: ${default})."`
	MaxNewNames     int      `toml:"max_new_names" default:"${max_new_names}" placeholder:"N" help:"Names that one user may lock in a second for the first time: each leaves a key in Redis (default: ${default})."`
	Metrics         string   `toml:"metrics" placeholder:"ADDRESS" help:"Serve metrics and a status page over HTTP at this IP address and port, such as 127.0.0.1:9377, or on a Unix socket at this path (default: not at all)."`
	MetricsNames    []string `toml:"metrics_names" placeholder:"PATTERN,…" help:"Count names that match these patterns apart, in metrics of their own: a name, or its beginning and * (default: none)."`
	ExpectedHold    []string `toml:"expected_hold" placeholder:"PATTERN=DURATION,…" help:"Count holds that last longer, for an alert: names, or their beginning and *, and a time, such as invoice:*=10m (default: none)."`
	LogLevel        string   `toml:"log_level" default:"info" enum:"debug,info,warn,error" placeholder:"LEVEL" help:"debug, info, warn or error (default: ${default})."`
	LogFormat       string   `toml:"log_format" default:"text" enum:"text,json" placeholder:"FORMAT" help:"text or json (default: ${default})."`
}

// origin is where a setting came from. A larger one beats a smaller one.
type origin int

const (
	fromDefault origin = iota
	fromFile
	fromEnv
	fromFlag
)

// settingsResolver gives kong the settings that are not on the command line, and records the
// origin of each.
type settingsResolver struct {
	file    map[string]string // what the settings files set, by key
	places  map[string]place  // where
	origins map[string]origin // by key

	policy       []policy.Entry // which only files can have
	policyPlaces []entryPlace   // where each of them is

	read, unread []string // the files that were read, in this order, and those beside them that were not
}

// newSettingsResolver reads the settings file at a path, and those in conf.d beside it; "": none.
// A key counts as the last file has it that has it. The entries of the policy are those of all
// files, one file after the other.
func newSettingsResolver(path string) (*settingsResolver, error) {
	r := &settingsResolver{file: make(map[string]string), places: make(map[string]place), origins: make(map[string]origin)}
	if path == "" {
		return r, nil
	}
	files, unread, err := readSettingsFiles(path)
	if err != nil {
		return nil, err
	}
	r.unread = unread
	var tables []map[string]any
	for _, f := range files {
		r.read = append(r.read, f.path)
		v := reflect.ValueOf(f.values)
		for i, key := range settingKeys() {
			if slices.Contains(f.keys, key) {
				r.file[key], r.places[key] = settingText(v.Field(i).Interface()), f.at(key)
			}
		}
		tables = append(tables, f.policy...)
		r.policyPlaces = append(r.policyPlaces, f.entryPlaces()...)
	}
	r.policy, err = r.readPolicy(tables)
	return r, err
}

// settingText returns the value of a setting as a flag has it.
func settingText(v any) string {
	if list, ok := v.([]string); ok {
		return kong.JoinEscaped(list, ',')
	}
	return fmt.Sprint(v)
}

func settingKeys() []string {
	t := reflect.TypeFor[settings]()
	keys := make([]string, t.NumField())
	for i := range keys {
		keys[i] = t.Field(i).Tag.Get("toml")
	}
	return keys
}

// defaultSettings returns the default of each setting as settingText would return it.
func defaultSettings() map[string]string {
	vars := settingVars()
	defaults := make(map[string]string)
	t := reflect.TypeFor[settings]()
	for i, key := range settingKeys() {
		text, has := t.Field(i).Tag.Lookup("default")
		switch name, isVar := strings.CutPrefix(text, "${"); {
		case !has:
			text = settingText(reflect.Zero(t.Field(i).Type).Interface())
		case isVar:
			text = vars[strings.TrimSuffix(name, "}")]
		}
		defaults[key] = text
	}
	// $LOCKSIDECAR_SOCKET is the variable of the setting, and also changes what vars have.
	defaults["socket"] = protocol.Socket
	return defaults
}

func settingKey(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

func settingEnv(key string) string { return "LOCKSIDECAR_" + strings.ToUpper(key) }

func (r *settingsResolver) Validate(*kong.Application) error { return nil }

// Resolve returns the value of a flag that is not on the command line. An empty variable
// counts as absent: unit files and containers cannot unset one.
func (r *settingsResolver) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag.Value) {
		return nil, nil
	}
	key := settingKey(flag.Name)
	if v := os.Getenv(settingEnv(key)); v != "" {
		r.origins[key] = fromEnv
		if err := checkValue(flag, v); err != nil {
			return nil, fmt.Errorf("$%s: %w", settingEnv(key), err)
		}
		return v, nil
	}
	if v, ok := r.file[key]; ok {
		r.origins[key] = fromFile
		if err := checkValue(flag, v); err != nil {
			return nil, fmt.Errorf("%s: %w", r.where(key), err)
		}
		return v, nil
	}
	return nil, nil
}

// checkValue parses a value and discards it, so that the error can name the variable or the file.
func checkValue(flag *kong.Flag, text string) error {
	if flag.Enum != "" && !slices.Contains(flag.EnumSlice(), text) {
		return fmt.Errorf("must be one of \"%s\" but got %q", strings.Join(flag.EnumSlice(), `","`), text)
	}
	discarded := reflect.New(flag.Target.Type()).Elem()
	scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: text})
	return flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: scan}, discarded)
}

// noteFlags records the origin of the settings on the command line.
func (r *settingsResolver) noteFlags(ctx *kong.Context) {
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved && isSetting(p.Flag.Value) {
			r.origins[settingKey(p.Flag.Name)] = fromFlag
		}
	}
}

// where returns a setting as the user wrote it, for error messages.
func (r *settingsResolver) where(key string) string {
	switch r.origins[key] {
	case fromFlag:
		return "--" + strings.ReplaceAll(key, "_", "-")
	case fromEnv:
		return "$" + settingEnv(key)
	case fromFile:
		return key + " in " + r.places[key].String()
	default:
		return key
	}
}

// placeValues adds to each refused value where it is written, unless it is a flag: a flag is named
// by the error.
func (r *settingsResolver) placeValues(err error) error {
	var refused *daemonsettings.Error
	if !errors.As(err, &refused) {
		return err
	}
	var placed []error
	for _, e := range joined(refused.Unwrap()) {
		var value *daemonsettings.ValueError
		if errors.As(e, &value) && (r.origins[value.Setting] == fromFile || r.origins[value.Setting] == fromEnv) {
			e = fmt.Errorf("%w (%s)", e, r.where(value.Setting))
		}
		placed = append(placed, e)
	}
	return errors.Join(placed...)
}

func isSetting(v *kong.Value) bool { return v.Tag != nil && v.Tag.Has("toml") }

// showEnv adds the variable to the help of a setting.
func showEnv(v *kong.Value) string {
	if !isSetting(v) {
		return v.Help
	}
	return v.Help + " [$" + settingEnv(settingKey(v.Name)) + "]"
}

// fileMode is a file mode, written as an octal number with a leading zero. Without the zero,
// 660 would be a decimal number in TOML.
type fileMode fs.FileMode

func (m *fileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil || n > 0o777 || n == 0 || text[0] != '0' {
		return fmt.Errorf("mode %q: write an octal number such as \"0660\"", text)
	}
	*m = fileMode(n)
	return nil
}

func (m fileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// duration is a time.Duration, written with its unit. A number without a unit would be
// nanoseconds in TOML.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: write a number with its unit, such as \"30s\", \"1h30m\" or \"500ms\"", text)
	}
	*d = duration(v)
	return nil
}

func (d duration) String() string { return time.Duration(d).String() }

// turn is the setting turn: a duration, of which 0 is one grant a turn, or "auto".
type turn struct {
	moment.Span // not set: auto
}

func (d *turn) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*d = turn{}
		return nil
	}
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("turn %q: write \"auto\", or a number with its unit, such as \"5ms\"; \"0s\" is one grant a turn", text)
	}
	*d = turn{moment.SpanOf(v)}
	return nil
}

func (d turn) String() string {
	if d == (turn{}) {
		return "auto"
	}
	return d.Span.String()
}

// durable is the setting durability: how many replicas confirm each lock; 0: none.
type durable int

func (d *durable) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*d = 0
		return nil
	}
	number, isReplicas := strings.CutPrefix(string(text), "replicas:")
	n, err := strconv.ParseUint(number, 10, 8)
	if !isReplicas || err != nil || n < 1 || n > 16 {
		return fmt.Errorf("durability %q: write \"none\", or \"replicas:1\" to \"replicas:16\" for the number of replicas that must confirm each lock", text)
	}
	*d = durable(n)
	return nil
}

func (d durable) String() string {
	if d == 0 {
		return "none"
	}
	return fmt.Sprintf("replicas:%d", int(d))
}

// checkZeros refuses a 0 where sidecar.Config would take it for the default.
func (s *settings) checkZeros(r *settingsResolver) error {
	for _, v := range []struct {
		key    string
		isZero bool
		want   string
	}{
		{"lease", s.Lease == 0, "choose 300ms to 1h"},
		{"resume_within", s.ResumeWithin == 0, "choose 1s or more; the lease is the least that makes sense"},
		{"max_sessions", s.MaxSessions == 0, "choose 1 or more"},
		{"max_locks", s.MaxLocks == 0, "choose 1 or more"},
		{"max_holds", s.MaxHolds == 0, "choose 1 or more"},
		{"max_waiters", s.MaxWaiters == 0, "choose 1 or more"},
		{"max_new_names", s.MaxNewNames == 0, "choose 1 or more"},
	} {
		if v.isZero {
			return fmt.Errorf("%s must not be 0; %s, or leave it out for the default", r.where(v.key), v.want)
		}
	}
	return nil
}

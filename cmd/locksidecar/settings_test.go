package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// parseServe parses a serve command line without running it.
func parseServe(t *testing.T, args ...string) (*serveCmd, error) {
	t.Helper()
	var c cli
	parser := newParser(&c, os.Stdout, os.Stderr)
	parsed, err := parser.Parse(append([]string{"serve"}, args...))
	if err != nil {
		return nil, err
	}
	c.Serve.resolver.noteFlags(parsed)
	return &c.Serve, nil
}

// cleanEnv unsets the settings in the environment of the test run.
func cleanEnv(t *testing.T) {
	t.Helper()
	for _, key := range append(settingKeys(), "config") {
		t.Setenv(settingEnv(key), "")
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagOverridesVariableOverridesFileOverridesDefault(t *testing.T) {
	cleanEnv(t)
	file := writeFile(t, "s.toml", `
lease = "11s"
max_locks = 11
max_holds = 11
socket_mode = "0611"
embedded = true
log_format = "json"
`)
	t.Setenv("LOCKSIDECAR_LEASE", "22s")
	t.Setenv("LOCKSIDECAR_MAX_LOCKS", "22")
	t.Setenv("LOCKSIDECAR_EMBEDDED", "false")
	c, err := parseServe(t, "--config", file, "--lease", "33s")
	if err != nil {
		t.Fatal(err)
	}
	if time.Duration(c.Lease) != 33*time.Second {
		t.Errorf("lease %v, want the flag's 33s", c.Lease)
	}
	if c.MaxLocks != 22 {
		t.Errorf("max_locks %d, want the variable's 22", c.MaxLocks)
	}
	if c.Embedded {
		t.Error("embedded, although the variable says false")
	}
	if c.MaxHolds != 11 || c.SocketMode != 0o611 || c.LogFormat != "json" {
		t.Errorf("max_holds %d, socket_mode %v, log_format %q, want the file's 11, 0611, json", c.MaxHolds, c.SocketMode, c.LogFormat)
	}
	if c.MaxWaiters != sidecar.DefaultMaxWaiters {
		t.Errorf("max_waiters %d, want the default", c.MaxWaiters)
	}
}

func TestVariableNamesTheSettingsFile(t *testing.T) {
	cleanEnv(t)
	t.Setenv("LOCKSIDECAR_CONFIG", writeFile(t, "s.toml", `max_locks = 7`))
	c, err := parseServe(t)
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxLocks != 7 {
		t.Errorf("max_locks %d, want the file's 7", c.MaxLocks)
	}
}

func TestErrorNamesTheRefusedSetting(t *testing.T) {
	for _, tt := range []struct {
		name string
		file string
		env  string
		args []string
		want string
	}{
		{name: "an unknown key", file: "leese = '3s'", want: `unknown key "leese"; the keys are socket,`},
		{name: "a table", file: "[redis]\nurl = 'x'", want: `not valid`},
		{name: "a key of the wrong type", file: "max_locks = 'many'", want: "max_locks"},
		{name: "a mode that is decimal in TOML", file: "socket_mode = 0o660", want: `write an octal number such as "0660"`},
		{name: "a mode without a leading zero", args: []string{"--socket-mode", "660"}, want: `write an octal number such as "0660"`},
		{name: "a mode above 0777", args: []string{"--socket-mode", "01777"}, want: `write an octal number such as "0660"`},
		{name: "a duration in a variable", env: "LOCKSIDECAR_LEASE=fast", want: "$LOCKSIDECAR_LEASE"},
		{name: "a duration without a unit in TOML", file: "lease = 30", want: `duration "30": write a number with its unit, such as "30s"`},
		{name: "a duration without a unit in a text", file: "resume_within = '30'", want: "write a number with its unit"},
		{name: "a duration without a unit in a flag", args: []string{"--lease", "30"}, want: "write a number with its unit"},
		{name: "a turn in a variable", env: "LOCKSIDECAR_TURN=soon", want: `$LOCKSIDECAR_TURN: turn "soon": write "auto", or a number with its unit`},
		{name: "a turn without a unit in TOML", file: "turn = 5", want: `turn "5": write "auto", or a number with its unit, such as "5ms"`},
		{name: "a durability in a variable", env: "LOCKSIDECAR_DURABILITY=all", want: `$LOCKSIDECAR_DURABILITY: durability "all": write "none", or "replicas:1" to "replicas:16"`},
		{name: "no replica", file: "durability = 'replicas:0'", want: `durability "replicas:0": write "none", or "replicas:1"`},
		{name: "too many replicas", args: []string{"--durability", "replicas:17"}, want: `durability "replicas:17": write "none", or "replicas:1"`},
		{name: "a number of replicas alone", args: []string{"--durability", "1"}, want: `durability "1": write "none", or "replicas:1"`},
		{name: "a linger without a unit", args: []string{"--linger", "5"}, want: "write a number with its unit"},
		{name: "a log level", args: []string{"--log-level", "loud"}, want: `must be one of "debug","info","warn","error"`},
		{name: "a log format in the file", file: "log_format = 'xml'", want: `must be one of "text","json"`},
		{name: "a file that is not there", args: []string{"--config", "/nonexistent.toml"}, want: "/nonexistent.toml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			if tt.file != "" {
				tt.args = append(tt.args, "--config", writeFile(t, "s.toml", tt.file))
			}
			if name, value, ok := strings.Cut(tt.env, "="); ok {
				t.Setenv(name, value)
			}
			_, err := parseServe(t, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestExampleFileHasEveryKeyWithItsDefault(t *testing.T) {
	cleanEnv(t)
	text, err := os.ReadFile("../../deploy/locksidecar.example.toml")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`(?m)^#([a-z_]+ = )`).ReplaceAllString(string(text), "$1")
	shown, err := parseServe(t, "--config", writeFile(t, "s.toml", example))
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := parseServe(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []*[]string{&shown.Fair, &shown.MetricsNames, &shown.ExpectedHold} {
		if len(*list) == 0 {
			*list = nil // an empty list is none
		}
	}
	if !reflect.DeepEqual(shown.settings, defaults.settings) {
		t.Errorf("the example has\n%+v\nbut the defaults are\n%+v", shown.settings, defaults.settings)
	}
	for _, key := range settingKeys() {
		if shown.resolver.file[key] == "" && !strings.Contains(example, "\n"+key+" = \"\"\n") && !strings.Contains(example, "\n"+key+" = []\n") {
			t.Errorf("the example does not show %s", key)
		}
	}
	if untouched, err := parseServe(t, "--config", "../../deploy/locksidecar.example.toml"); err != nil || len(untouched.resolver.file) != 0 {
		t.Errorf("the example as it is delivered sets %v, %v; want nothing", untouched.resolver.file, err)
	}
}

func TestSettingsFileOfThePackageSetsNothing(t *testing.T) {
	cleanEnv(t)
	text, err := os.ReadFile("../../deploy/locksidecar.toml")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := parseServe(t, "--config", "../../deploy/locksidecar.toml"); err != nil || len(c.resolver.file)+len(c.resolver.policy) != 0 {
		t.Errorf("%v; as it is delivered, it sets %v", err, c.resolver.file)
	}
	// A path that it names is there when the package is installed.
	if !strings.Contains(string(text), "/usr/share/doc/locksidecar/deploy/locksidecar.example.toml\n") {
		t.Error("it does not name the example")
	}
}

func TestDurabilityIsANumberOfReplicas(t *testing.T) {
	for _, tt := range []struct {
		file string
		args []string
		want int
	}{
		{"", nil, 0},
		{"durability = 'replicas:1'", nil, 1},
		{"durability = 'replicas:1'", []string{"--durability=none"}, 0},
		{"", []string{"--durability=replicas:16"}, 16},
	} {
		cleanEnv(t)
		c, err := parseServe(t, append(tt.args, "--config", writeFile(t, "s.toml", tt.file))...)
		if err != nil {
			t.Fatal(err)
		}
		if cfg := c.config(); cfg.Replicas != tt.want {
			t.Errorf("%q and %v: %d replicas, want %d", tt.file, tt.args, cfg.Replicas, tt.want)
		}
	}
}

func TestDurabilityIsRefusedForAPrivateRedis(t *testing.T) {
	cleanEnv(t)
	c, err := parseServe(t, "--embedded", "--durability=replicas:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.read(&kong.Context{}); err == nil || !strings.Contains(err.Error(), "--durability needs a Redis with replicas") {
		t.Errorf("got %v", err)
	}
}

// Every setting reaches the sidecar that has a field for it.
func TestEverySettingReachesTheSidecar(t *testing.T) {
	elsewhere := map[string]string{
		"Redis": "chosen among several settings", "RedisFile": "becomes Redis", "Embedded": "becomes Redis",
		"LogLevel": "becomes Log", "LogFormat": "becomes Log", "Durability": "becomes Replicas",
	}
	var set settings
	fields := reflect.ValueOf(&set).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); {
		case f.Type() == reflect.TypeFor[turn]():
			f.Set(reflect.ValueOf(turn{moment.SpanOf(7)}))
		case f.CanInt():
			f.SetInt(7)
		case f.CanUint():
			f.SetUint(7)
		case f.Kind() == reflect.String:
			f.SetString("seven")
		case f.Kind() == reflect.Slice:
			f.Set(reflect.ValueOf([]string{"seven"}))
		}
	}
	config := reflect.ValueOf(set.config())
	for i := range fields.NumField() {
		name := fields.Type().Field(i).Name
		if elsewhere[name] != "" {
			continue
		}
		if got := config.FieldByName(name); !got.IsValid() || got.IsZero() {
			t.Errorf("the setting %s does not reach the sidecar", name)
		}
	}
}

// A list is an array in the file, and one text with commas elsewhere.
func TestListIsTheSameInEachSpelling(t *testing.T) {
	for _, tt := range []struct {
		name, file, env string
		args            []string
	}{
		{name: "file", file: `metrics_names = ["invoice:*", "a,b"]`},
		{name: "variable", env: `invoice:*,a\,b`},
		{name: "flag", args: []string{"--metrics-names", `invoice:*,a\,b`}},
		{name: "flags", args: []string{"--metrics-names", "invoice:*", "--metrics-names", `a\,b`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			t.Setenv("LOCKSIDECAR_METRICS_NAMES", tt.env)
			if tt.file != "" {
				tt.args = []string{"--config", writeFile(t, "s.toml", tt.file)}
			}
			c, err := parseServe(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if want := []string{"invoice:*", "a,b"}; !slices.Equal(c.MetricsNames, want) {
				t.Errorf("%q, want %q", c.MetricsNames, want)
			}
		})
	}
}

// To the sidecar, 0 stands for the default. A user writes 0 for no lingering, and for turns of one
// grant.
//
// Shows docs/queue.md: Settings.
func TestZeroOfLingerAndTurnIsNotTheDefault(t *testing.T) {
	for _, tt := range []struct {
		name string
		file string
		args []string
		want sidecar.Config
	}{
		{name: "the defaults", want: sidecar.Config{Linger: moment.SpanOf(sidecar.DefaultLinger)}},
		{name: "the defaults, written", args: []string{"--linger=5ms", "--turn=auto"}, want: sidecar.Config{Linger: moment.SpanOf(5 * time.Millisecond)}},
		{name: "0 in flags", args: []string{"--linger=0", "--turn=0"}, want: sidecar.Config{Linger: moment.SpanOf(0), Turn: moment.SpanOf(0)}},
		{name: "0 in the file", file: "linger = \"0s\"\nturn = \"0s\"", want: sidecar.Config{Linger: moment.SpanOf(0), Turn: moment.SpanOf(0)}},
		{name: "other durations", file: "linger = \"20ms\"\nturn = \"1s\"", want: sidecar.Config{Linger: moment.SpanOf(20 * time.Millisecond), Turn: moment.SpanOf(time.Second)}},
		{name: "a flag over the file", file: "turn = \"1s\"", args: []string{"--turn=auto"}, want: sidecar.Config{Linger: moment.SpanOf(sidecar.DefaultLinger)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			if tt.file != "" {
				tt.args = append(tt.args, "--config", writeFile(t, "s.toml", tt.file))
			}
			c, err := parseServe(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if cfg := c.config(); cfg.Linger != tt.want.Linger || cfg.Turn != tt.want.Turn {
				t.Errorf("linger %v, turn %v; want %v, %v", cfg.Linger, cfg.Turn, tt.want.Linger, tt.want.Turn)
			}
		})
	}
}

func TestOneRedisIsChosenByTheHighestOrigin(t *testing.T) {
	const file = "redis://file.example:1/0"
	const env = "redis://app:p%40ss@env.example:2/1"
	secret := writeFile(t, "url", "rediss://:s3cret@secret.example:3/2\n")
	for _, tt := range []struct {
		name     string
		file     string
		env      map[string]string
		args     []string
		want     string // what is shown
		embedded bool
	}{
		{name: "nothing", want: sidecar.DefaultRedis},
		{name: "the file", file: `redis = "` + file + `"`, want: file},
		{name: "a variable over the file", file: `redis = "` + file + `"`, env: map[string]string{"LOCKSIDECAR_REDIS": env}, want: "redis://app@env.example:2/1"},
		{name: "a flag's file over a variable", args: []string{"--redis-file", secret}, env: map[string]string{"LOCKSIDECAR_REDIS": env}, want: "rediss://secret.example:3/2"},
		{name: "embedded over a variable", args: []string{"--embedded"}, env: map[string]string{"LOCKSIDECAR_REDIS": env}, embedded: true},
		{name: "a flag over the file's embedded", file: "embedded = true", args: []string{"--redis", "unix:///r.sock"}, want: "unix:///r.sock"},
		{name: "a credential over the default", env: map[string]string{"CREDENTIALS_DIRECTORY": credentialDir(t, "redis://:x@cred.example")}, want: "redis://cred.example"},
		{name: "a variable over a credential", env: map[string]string{"CREDENTIALS_DIRECTORY": credentialDir(t, "redis://cred.example"), "LOCKSIDECAR_REDIS": env}, want: "redis://app@env.example:2/1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			if tt.file != "" {
				tt.args = append(tt.args, "--config", writeFile(t, "s.toml", tt.file))
			}
			c, err := parseServe(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			got, err := chooseRedis(&c.settings, c.resolver)
			if err != nil || got.shown != tt.want || got.embedded != tt.embedded {
				t.Errorf("got %q, embedded %v, %v; want %q, %v", got.shown, got.embedded, err, tt.want, tt.embedded)
			}
		})
	}
}

func credentialDir(t *testing.T, text string) (dir string) {
	t.Helper()
	return filepath.Dir(writeFile(t, credentialName, text))
}

func TestRefusedRedisURLIsNeverQuoted(t *testing.T) {
	const password = "hunter2"
	for _, tt := range []struct{ name, url, want string }{
		{"no scheme", "hunter2@host:6379", "no redis:// at its beginning"},
		{"no scheme, and a user", "hunter2:x@host", "no redis:// at its beginning"},
		{"another scheme", "http://:hunter2@host", `begins with "http"`},
		{"a slash in the password", "redis://:a/hunter2@host", "must be percent-encoded"},
		{"a slash after digits", "redis://:123/hunter2@host", "not one"},
		{"a number sign", "redis://:123#hunter2@host", "not one"},
		{"a question mark", "redis://:123?hunter2@host", "not one"},
		{"a percent sign", "redis://:%hunter2@host", "two hexadecimal digits"},
		{"a space", "redis://: hunter2@host", "must be percent-encoded"},
		{"a database that is no number", "redis://:hunter2@host/hunter2", "not one"},
		{"no host", "redis://:hunter2@/0", "not one"},
		{"a unix URL with two slashes", "unix://hunter2/redis.sock", "and not three"},
		{"a Cluster with a database", "redis+cluster://:hunter2@a,b/1", "a Cluster has database 0 only"},
		{"Sentinels without a master", "redis+sentinel://:hunter2@a,b", "names no master behind the Sentinels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			t.Setenv("LOCKSIDECAR_REDIS", tt.url)
			c, err := parseServe(t)
			if err != nil {
				t.Fatal(err)
			}
			target, err := chooseRedis(&c.settings, c.resolver)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "$LOCKSIDECAR_REDIS") {
				t.Fatalf("got %+v, %v; want an error that names the variable", target, err)
			}
			if strings.Contains(err.Error(), password) {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

func TestPasswordOnTheCommandLineIsRefused(t *testing.T) {
	cleanEnv(t)
	for _, url := range []string{"redis://:hunter2@host", "redis://host?password=hunter2"} {
		c, err := parseServe(t, "--redis", url)
		if err != nil {
			t.Fatal(err)
		}
		_, err = chooseRedis(&c.settings, c.resolver)
		if err == nil || !strings.Contains(err.Error(), "--redis-file") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}

func TestTwoRedisSettingsOfOneOriginAreRefused(t *testing.T) {
	cleanEnv(t)
	c, err := parseServe(t, "--embedded", "--redis", "redis://h")
	if err != nil {
		t.Fatal(err)
	}
	_, err = chooseRedis(&c.settings, c.resolver)
	if err == nil || !strings.Contains(err.Error(), "--redis") || !strings.Contains(err.Error(), "--embedded") {
		t.Errorf("got %v, want both flags named", err)
	}
}

func TestHelpNeverShowsThePasswordOfAVariable(t *testing.T) {
	cleanEnv(t)
	t.Setenv("LOCKSIDECAR_REDIS", "redis://:hunter2@host")
	var out strings.Builder
	var c cli
	parser := newParser(&c, &out, &out, kong.Exit(func(int) {}))
	_, _ = parser.Parse([]string{"serve", "--help"}) // only the text of the help matters
	if !strings.Contains(out.String(), "LOCKSIDECAR_REDIS") || strings.Contains(out.String(), "hunter2") {
		t.Errorf("help shows\n%s", out.String())
	}
}

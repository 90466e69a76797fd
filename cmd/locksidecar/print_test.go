package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
)

// viewServe returns what serve --print would print.
func viewServe(t *testing.T, args ...string) (*serveCmd, *settingsView) {
	t.Helper()
	c, err := parseServe(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	target, err := chooseRedis(&c.settings, c.resolver)
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.config()
	return c, c.view(&cfg, &target)
}

const manySettings = `
redis = "redis://app:hunter2@redis.example:6380/3?read_timeout=5s&password=hunter2"
socket_mode = "0666"
lease = "90s"
turn = "0s"
linger = "0s"
token_expiry = "168h"
key_prefix = 'app"1\:'
host_name = "db-7"
fair = ["a\"b", 'c\d*', "ü,\u007f"]
metrics_names = []
expected_hold = ["invoice:*=10m", "a=b=1h30m"]
max_locks = 17
log_level = "debug"

[[policy]]
name = "team-a"
users = ["0", "1000"]
names = ["a:*", "b\"'\t"]
acquire = "allow"
commands = false
list = "own"
holds = 3
longest_hold = "1h"

[[policy]]
name = "rest"
commands = true
per = "entry"
requests_per_second = 10
`

// What is printed has the same effect as a settings file, except for the password.
func TestPrintedSettingsCanBeReadBack(t *testing.T) {
	cleanEnv(t)
	t.Setenv("LOCKSIDECAR_MAX_HOLDS", "7")
	c, view := viewServe(t, "--config", writeFile(t, "s.toml", manySettings), "--max-waiters", "9")
	text := view.text()
	if strings.Contains(text, "hunter2") {
		t.Errorf("it has the password:\n%s", text)
	}
	t.Setenv("LOCKSIDECAR_MAX_HOLDS", "")
	again, viewAgain := viewServe(t, "--config", writeFile(t, "printed.toml", text))
	if want := "redis://app@redis.example:6380/3?read_timeout=5s"; again.Redis != want {
		t.Errorf("redis is %q, want %q", again.Redis, want)
	}
	c.Redis = again.Redis
	if len(again.MetricsNames) == 0 && len(c.MetricsNames) == 0 {
		again.MetricsNames = c.MetricsNames
	}
	if !reflect.DeepEqual(again.settings, c.settings) {
		t.Errorf("read back, the settings are\n%+v\nand were\n%+v", again.settings, c.settings)
	}
	if !reflect.DeepEqual(again.resolver.policy, c.resolver.policy) || len(c.resolver.policy) != 2 {
		t.Errorf("read back, the policy is\n%+v\nand was\n%+v", again.resolver.policy, c.resolver.policy)
	}
	if viewAgain.Hash != view.Hash {
		t.Errorf("read back, the hash is %s, and was %s", viewAgain.Hash, view.Hash)
	}
	for _, key := range settingKeys() {
		if again.resolver.origins[key] != fromFile {
			t.Errorf("%s is not printed", key)
		}
	}
}

func TestPrintNamesTheOriginOfEachSetting(t *testing.T) {
	cleanEnv(t)
	dir := writeTree(t, map[string]string{
		"s.toml":           "\nlease = '40s'\nmax_locks = 3\n[[policy]]\nname = 'a'\nholds = 1",
		"conf.d/10.toml":   "\n\nlease = '50s'\n\n[[policy]]\nname = 'b'\nholds = 1",
		"conf.d/redis.txt": "",
	})
	credentials := writeTree(t, map[string]string{"redis-ca": ""})
	t.Setenv("CREDENTIALS_DIRECTORY", credentials)
	t.Setenv("LOCKSIDECAR_MAX_HOLDS", "7")
	f := &fakeSidecar{path: filepath.Join(dir, "s.sock")}
	out := expectExit(t, start(t, f, "serve", "--print", "--config", dir+"/s.toml", "--max-waiters=9"), 0, "")
	for _, want := range []string{
		`max_waiters = 9 # --max-waiters`,
		`max_holds = 7 # $LOCKSIDECAR_MAX_HOLDS`,
		`max_locks = 3 # ` + dir + `/s.toml:3`,
		`lease = "50s" # ` + dir + `/conf.d/10.toml:3`,
		`resume_unseen = "0s" # default: the lease, 50s`,
		`redis = "" # default: ` + sidecar.DefaultRedis,
		`redis_ca = "" # default: ` + credentials + `/redis-ca`,
		`state = "" # default: ` + f.path + `.state`,
		`[[policy]] # ` + dir + `/s.toml:4`,
		`[[policy]] # ` + dir + `/conf.d/10.toml:5`,
		`# Read: ` + dir + `/conf.d/10.toml`,
		`# Not read: ` + dir + `/conf.d/redis.txt (its name does not end in .toml)`,
	} {
		if !slices.Contains(strings.Split(regexp.MustCompile(` +`).ReplaceAllString(out, " "), "\n"), want) {
			t.Errorf("the line %q is missing in\n%s", want, out)
		}
	}
	// The same as JSON.
	var got struct {
		Hash     string
		Read     []string
		NotRead  []string `json:"not_read"`
		Settings []struct {
			Key, Origin, Where string
			Value              any
		}
		Policy []struct {
			Entry map[string]any
			Where string
		}
	}
	out = expectExit(t, start(t, f, "serve", "--print", "--json", "--config", dir+"/s.toml", "--max-waiters=9"), 0, "")
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Settings) != len(settingKeys()) || len(got.Read) != 2 || len(got.NotRead) != 1 || len(got.Policy) != 2 ||
		got.Policy[1].Entry["name"] != "b" || got.Policy[1].Entry["holds"] != 1.0 || got.Policy[1].Where != dir+"/conf.d/10.toml:5" {
		t.Errorf("%+v", got)
	}
	origins := make(map[string]string)
	for _, s := range got.Settings {
		origins[s.Key] = s.Origin + " " + s.Where
	}
	for key, want := range map[string]string{
		"lease": "file " + dir + "/conf.d/10.toml:3", "max_waiters": "flag --max-waiters", "max_holds": "variable $LOCKSIDECAR_MAX_HOLDS", "turn": "default ",
	} {
		if origins[key] != want {
			t.Errorf("the origin of %s is %q, want %q", key, origins[key], want)
		}
	}
}

// A settings file can have only one of the settings that name a Redis.
func TestPrintHasTheRedisThatIsUsed(t *testing.T) {
	secret := writeFile(t, "url", "rediss://app:hunter2@secret.example:3/2\n")
	for _, tt := range []struct {
		name string
		file string
		env  map[string]string
		args []string
		want []string // in the text, without repeated spaces
	}{
		{name: "a flag's file", file: "redis = 'redis://:hunter2@file.example'", args: []string{"--redis-file", secret}, want: []string{
			`redis = "" # FILE:1: not used: --redis-file names Redis`, `redis_file = "` + secret + `" # --redis-file: rediss://app@secret.example:3/2`}},
		{name: "a variable", file: "embedded = true", env: map[string]string{"LOCKSIDECAR_REDIS": "redis://app:hunter2@env.example"}, want: []string{
			`redis = "redis://app@env.example" # $LOCKSIDECAR_REDIS: the password is left out`, `embedded = false # FILE:1: not used: $LOCKSIDECAR_REDIS names Redis`}},
		{name: "embedded", file: "redis_file = '/nonexistent'", args: []string{"--embedded"}, want: []string{
			`embedded = true # --embedded`, `redis_file = "" # FILE:1: not used: --embedded names Redis`, `redis = "" # default`}},
		{name: "a credential", file: "embedded = false", env: map[string]string{"CREDENTIALS_DIRECTORY": credentialDir(t, "redis://:hunter2@cred.example")}, want: []string{
			`redis = "" # default: the credential redis-url names redis://cred.example`, `embedded = false # FILE:1`}},
		{name: "an empty text", file: "redis = ''", want: []string{`redis = "" # FILE:1: ` + sidecar.DefaultRedis}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			path := writeFile(t, "s.toml", tt.file)
			c, view := viewServe(t, append(tt.args, "--config", path)...)
			text := view.text()
			lines := strings.Split(regexp.MustCompile(` +`).ReplaceAllString(text, " "), "\n")
			for _, want := range tt.want {
				if want = strings.ReplaceAll(want, "FILE", path); !slices.Contains(lines, want) {
					t.Errorf("the line %q is missing in\n%s", want, text)
				}
			}
			if strings.Contains(text, "hunter2") {
				t.Errorf("it has the password:\n%s", text)
			}
			before, err := chooseRedis(&c.settings, c.resolver)
			if err != nil {
				t.Fatal(err)
			}
			for name := range tt.env {
				if name != "CREDENTIALS_DIRECTORY" {
					t.Setenv(name, "")
				}
			}
			again, _ := viewServe(t, "--config", writeFile(t, "printed.toml", text))
			if after, err := chooseRedis(&again.settings, again.resolver); err != nil || after.shown != before.shown || after.embedded != before.embedded {
				t.Errorf("read back, Redis is %+v, %v; it was %+v", after, err, before)
			}
		})
	}
}

func TestURLIsShownWithoutItsPassword(t *testing.T) {
	for _, tt := range []struct{ url, want, anyUser string }{
		{"redis://app:hunter2@h:1/2", "redis://app@h:1/2", "redis://h:1/2"},
		{"redis://:hunter2@h", "redis://h", "redis://h"},
		{"unix://app:hunter2@/r.sock?db=1&password=hunter2", "unix://app@/r.sock?db=1", "unix:///r.sock?db=1"},
		{"redis://h?Passwd=hunter2&db=1", "redis://h?db=1", "redis://h?db=1"},
		{"redis://h?password=hunter2;db=1", "redis://h", "redis://h"},
		{"redis://h?username=app&db=1", "redis://h?db=1&username=app", "redis://h?db=1"},
	} {
		if got := withoutPassword(tt.url, false); got != tt.want {
			t.Errorf("%s is shown as %s, want %s", tt.url, got, tt.want)
		}
		if got := withoutPassword(tt.url, true); got != tt.anyUser {
			t.Errorf("%s counts as %s, want %s", tt.url, got, tt.anyUser)
		}
	}
}

// A fleet is compared by the hash: hosts that are set up alike have the same.
func TestHashIsThatOfTheSettingsInForce(t *testing.T) {
	cleanEnv(t)
	secret := writeFile(t, "url", "redis://other:hunter3@redis.example/1")
	const policyA, policyB = "[[policy]]\nname = 'a'\nholds = 1\n", "[[policy]]\nname = 'b'\nholds = 1\n"
	hash := func(file string, args ...string) string {
		_, view := viewServe(t, append(args, "--config", writeFile(t, "s.toml", file))...)
		if !regexp.MustCompile(`^[0-9a-f]{12}$`).MatchString(view.Hash) {
			t.Fatalf("the hash is %q", view.Hash)
		}
		return view.Hash
	}
	for _, tt := range []struct {
		name, a, b string
		args       []string // of b
		isSame     bool
	}{
		{"nothing, and a default", "", "lease = '30s'\nturn = 'auto'\nmax_locks = 1048576\nredis = 'redis://127.0.0.1:6379/0'\nsocket = '" + protocol.Socket + "'", nil, true},
		{"one value in two spellings", "lease = '60s'", "lease = '1m'", nil, true},
		{"a file and a flag", "lease = '60s'", "", []string{"--lease=60s"}, true},
		{"another name and metrics of the host", "host_name = 'a'", "host_name = 'b'\nmetrics = '10.0.0.7:9377'", nil, true},
		{"another user and password", "redis = 'redis://app:hunter2@redis.example/1'", "", []string{"--redis-file", secret}, true},
		{"a comment and another order of keys", "lease = '60s'\nmax_locks = 1", "max_locks = 1 # one\nlease = '60s'", nil, true},
		{"another lease", "lease = '60s'", "lease = '61s'", nil, false},
		{"another server", "redis = 'redis://a.example'", "redis = 'redis://b.example'", nil, false},
		{"another database", "redis = 'redis://a.example/1'", "redis = 'redis://a.example/2'", nil, false},
		{"embedded", "", "embedded = true", nil, false},
		{"another socket", "", "socket = '/run/x.sock'", nil, false},
		{"another policy", policyA, policyB, nil, false},
		{"another order of the policy", policyA + policyB, policyB + policyA, nil, false},
		{"a switch that is off, and one that does not decide", policyA, policyA + "commands = false", nil, false},
		{"another level of the log", "", "log_level = 'debug'", nil, false},
		{"lists that read alike without quotes", "fair = ['a', 'b']", "fair = ['a,b']", nil, false},
	} {
		if got := hash(tt.a) == hash(tt.b, tt.args...); got != tt.isSame {
			t.Errorf("%s: the same hash: %v", tt.name, got)
		}
	}
	// The socket of the variable is no default.
	before := hash("")
	t.Setenv("LOCKSIDECAR_SOCKET", "/run/x.sock")
	if hash("") == before {
		t.Error("$LOCKSIDECAR_SOCKET does not change the hash")
	}
}

// Only the parser of flags and this function read the tags of defaults.
func TestDefaultSettingsAreThoseOfTheFlags(t *testing.T) {
	cleanEnv(t)
	c, err := parseServe(t)
	if err != nil {
		t.Fatal(err)
	}
	defaults := defaultSettings()
	v := reflect.ValueOf(c.settings)
	for i, key := range settingKeys() {
		if got := settingText(v.Field(i).Interface()); got != defaults[key] {
			t.Errorf("%s is %q, and its default is said to be %q", key, got, defaults[key])
		}
	}
}

func TestJSONIsForPrintOnly(t *testing.T) {
	cleanEnv(t)
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
	expectExit(t, start(t, f, "serve", "--json"), exitUsage, "--json is for --print only")
	expectExit(t, start(t, f, "serve", "--check", "--print"), exitUsage, "--check and --print")
}

// The metric is that of the settings in force: a changed file changes it after the restart of a
// reload, and not before. The hash that --print shows tells the two apart.
func TestMetricHasTheHashOfTheSettingsInForce(t *testing.T) {
	cleanEnv(t)
	dir := writeTree(t, map[string]string{"s.toml": "lease = '40s'", "conf.d/10.toml": ""})
	f := &fakeSidecar{path: filepath.Join(dir, "s.sock")}
	args := []string{"--embedded", "--config", dir + "/s.toml"}
	printed := func() string {
		t.Helper()
		out := expectExit(t, start(t, f, append([]string{"serve", "--print"}, args...)...), 0, "")
		return regexp.MustCompile(`(?m)^# Hash.* ([0-9a-f]{12})$`).FindStringSubmatch(out)[1]
	}
	metric := func() string {
		t.Helper()
		out := expectExit(t, start(t, f, "metrics"), 0, "")
		return regexp.MustCompile(`(?m)^locksidecar_settings_info\{hash="([0-9a-f]{12})"\} 1$`).FindStringSubmatch(out)[1]
	}
	serve := func() *daemonUnderTest {
		t.Helper()
		d := startServe(t, command(f, append([]string{"serve"}, args...)...))
		if got := d.notified(); got != "READY=1" {
			t.Fatalf("the first message is %q, want READY=1", got)
		}
		return d
	}
	d := serve()
	before := printed()
	if got := metric(); got != before {
		t.Errorf("the metric has %s, and --print %s", got, before)
	}
	if err := os.WriteFile(dir+"/conf.d/10.toml", []byte("lease = '50s'"), 0o600); err != nil {
		t.Fatal(err)
	}
	after := printed()
	if got := metric(); got != before || after == before {
		t.Errorf("before the restart, the metric has %s, want %s; --print has %s", got, before, after)
	}
	if log := d.stopped(unix.SIGTERM); !strings.Contains(log, "settings="+before) {
		t.Errorf("the log does not have the hash:\n%s", log)
	}
	d = serve()
	if got := metric(); got != after {
		t.Errorf("after the restart, the metric has %s, want %s", got, after)
	}
	d.stopped(unix.SIGTERM)
}

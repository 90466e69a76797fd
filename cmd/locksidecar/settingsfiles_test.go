package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// writeTree writes files below a new directory, which it returns.
func writeTree(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFilesInConfDAreReadInOrderAfterTheSettingsFile(t *testing.T) {
	cleanEnv(t)
	dir := writeTree(t, map[string]string{
		"s.toml":             "max_locks = 1\nmax_holds = 1\nmax_waiters = 1\nfair = ['a', 'b']\n[[policy]]\nname = 'main'\nholds = 1\n",
		"conf.d/20-b.toml":   "max_locks = 20\n[[policy]]\nname = 'b1'\nholds = 1\n[[policy]]\nname = 'b2'\nholds = 1\n",
		"conf.d/10-a.toml":   "max_locks = 10\nmax_holds = 10\nfair = ['c']\n[[policy]]\nname = 'a'\nholds = 1\n",
		"conf.d/9-c.toml":    "max_holds = 9\n", // '1' < '9'
		"conf.d/empty.toml":  "",
		"conf.d/.hid.toml":   "max_waiters = 2",
		"conf.d/a.toml~":     "max_waiters = 3",
		"conf.d/a.toml.bak":  "max_waiters = 4",
		"conf.d/README":      "max_waiters = 5",
		"conf.d/sub/x.toml":  "max_waiters = 6",
		"other.d/50-x.toml":  "max_waiters = 7",
		"s.toml.d/50-x.toml": "max_waiters = 8",
	})
	c, err := parseServe(t, "--config", filepath.Join(dir, "s.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxLocks != 20 || c.MaxHolds != 9 || c.MaxWaiters != 1 || !slices.Equal(c.Fair, []string{"c"}) {
		t.Errorf("max_locks %d, max_holds %d, max_waiters %d, fair %q; want 20, 9, 1, [c]", c.MaxLocks, c.MaxHolds, c.MaxWaiters, c.Fair)
	}
	var names []string
	for _, e := range c.resolver.policy {
		names = append(names, e.Name)
	}
	if want := []string{"main", "a", "b1", "b2"}; !slices.Equal(names, want) {
		t.Errorf("the policy is %q, want %q", names, want)
	}
	base := func(paths []string) (names []string) {
		for _, p := range paths {
			names = append(names, strings.TrimPrefix(p, dir+"/"))
		}
		return names
	}
	if got, want := base(c.resolver.read), []string{"s.toml", "conf.d/10-a.toml", "conf.d/20-b.toml", "conf.d/9-c.toml", "conf.d/empty.toml"}; !slices.Equal(got, want) {
		t.Errorf("read were %q, want %q", got, want)
	}
	if got, want := base(c.resolver.unread), []string{"conf.d/README", "conf.d/a.toml.bak", "conf.d/a.toml~", "conf.d/sub"}; !slices.Equal(got, want) {
		t.Errorf("shown as not read are %q, want %q", got, want)
	}
}

// A variable and a flag come before every file.
func TestVariableOverridesConfD(t *testing.T) {
	cleanEnv(t)
	dir := writeTree(t, map[string]string{"s.toml": "", "conf.d/a.toml": "max_locks = 10\nlease = '10s'\nmax_holds = 10"})
	t.Setenv("LOCKSIDECAR_MAX_LOCKS", "22")
	t.Setenv("LOCKSIDECAR_CONFIG", filepath.Join(dir, "s.toml"))
	c, err := parseServe(t, "--lease", "33s")
	if err != nil {
		t.Fatal(err)
	}
	if c.MaxLocks != 22 || time.Duration(c.Lease) != 33*time.Second || c.MaxHolds != 10 {
		t.Errorf("max_locks %d, lease %v, max_holds %d; want 22, 33s, 10", c.MaxLocks, c.Lease, c.MaxHolds)
	}
}

// A ConfigMap of Kubernetes is a directory of links, and hidden directories. conf.d is one of the
// links if the files of the ConfigMap have paths.
func TestConfDMayBeAMountedConfigMap(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		links      map[string]string
	}{
		{"files", "conf.d/..2026_11_24/a.toml", map[string]string{"conf.d/..data": "..2026_11_24", "conf.d/a.toml": "..data/a.toml"}},
		{"a directory", "..2026_11_24/conf.d/a.toml", map[string]string{"..data": "..2026_11_24", "conf.d": "..data/conf.d"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := writeTree(t, map[string]string{"s.toml": "", tt.file: "max_locks = 7"})
			for link, target := range tt.links {
				if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			c, err := parseServe(t, "--config", filepath.Join(dir, "s.toml"))
			if err != nil || c.MaxLocks != 7 || len(c.resolver.unread) != 0 {
				t.Fatalf("%v; %+v", err, c)
			}
		})
	}
}

func TestFaultNamesFileAndLine(t *testing.T) {
	for _, tt := range []struct{ name, main, dropIn, want string }{
		{"an unknown key", "", "\nlease = '3s'\nleese = '3s'", `DROPIN, line 3 has the unknown key "leese"; the keys are socket,`},
		{"an unknown table", "", "\n\n[redis_tls]\nca = 'x'", `DROPIN, line 3 has the unknown key "redis_tls"`},
		{"an unknown table in a table", "", "\n\n[polcy.web]\nholds = 1", `DROPIN, line 3 has the unknown key "polcy.web"`},
		{"an unknown array in a table", "", "[[policies.web]]\nholds = 1", `DROPIN, line 1 has the unknown key "policies.web"`},
		{"an unknown key with a dot", "leese.max = 1", "", `MAIN, line 1 has the unknown key "leese.max"`},
		{"an unknown key after a text that looks like it", "host_name = '''\nx = 1\n'''\nfair = [\n'y',\n]\nx = 2", "", `MAIN, line 7 has the unknown key "x"`},
		{"faults of two files", "leese = 1", "loose = 2", "MAIN, line 1 has the unknown key"},
		{"a syntax error", "", "\nlease = \n", "DROPIN is not valid: toml: line 2"},
		{"a wrong type", "", "\n\nmax_locks = 'many'", "DROPIN is not valid: toml: line 3"},
		{"a refused duration", "", "lease = '5'", `DROPIN is not valid: toml: line 1 (last key "lease"): duration "5"`},
		{"a word that is none of the list", "log_level = 'info'", "\nlog_level = 'loud'", `log_level in DROPIN, line 2: must be one of "debug","info","warn","error" but got "loud"`},
		{"a value of 0", "", "\nmax_locks = 0", "max_locks in DROPIN, line 2 must not be 0"},
		{"a value out of range", "max_locks = 5", "\n\nlease = '2h'\nfair = ['x*x*']", "lease 2h0m0s: choose 300ms to 1h0m0s (lease in DROPIN, line 3)"},
		{"a second one", "", "\n\nlease = '2h'\nfair = ['x*x*']", "(fair in DROPIN, line 4)"},
		{"a value out of range in the settings file", "lease = '2h'", "\nmax_locks = 5", "choose 300ms to 1h0m0s (lease in MAIN, line 1)"},
		{"a policy entry", "[[policy]]\nname = 'a'\nholds = 1", "\n[[policy]]\nname = 'b'\nhold = 1", `DROPIN, line 4: entry 2 of the policy ("b"): hold: there is no such key`},
		{"a name of another file's entry", "[[policy]]\nname = 'a'\nholds = 1", "\n[[policy]]\nname = 'a'\nholds = 1", `DROPIN, line 3: entry 2 of the policy ("a"): name: another entry has the same name`},
		{"an entry of the file before", "[[policy]]\nname = 'a'\nholds = 0", "\n[[policy]]\nname = 'b'\nholds = 1", `MAIN, line 3: entry 1 of the policy ("a")`},
		{"entries in one array", "\npolicy = [{name = 'a', holds = 1}, {name = 'b', holds = 0}]", "\n\n[[policy]]\nname = 'c'\nholds = 0", `MAIN, line 2: entry 2 of the policy ("b"): holds`},
		{"an entry after entries in one array", "\npolicy = [{name = 'a', holds = 1}, {name = 'b', holds = 1}]", "\n\n[[policy]]\nname = 'c'\nholds = 0", `DROPIN, line 5: entry 3 of the policy ("c"): holds`},
		{"two that name Redis", "\nredis = 'redis://a'", "\n\nredis_file = '/x'", "by redis in MAIN, line 2 and by redis_file in DROPIN, line 3; keep one"},
		{"a URL that is none", "", "\nredis = 'ftp://a'", `redis in DROPIN, line 2: the Redis URL begins with "ftp"`},
		{"a Cluster with a database", "", "\nredis = 'redis+cluster://a/1'", "redis in DROPIN, line 2: the Redis URL names a database, and a Cluster has database 0 only"},
		{"Sentinels without the name of a master", "redis = 'redis+sentinel://a,b'", "", "redis in MAIN, line 1: the Redis URL names no master behind the Sentinels"},
		{"a fragment", "redis = 'redis://a#b'", "", "the Redis URL of redis in MAIN, line 1 is not one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := writeTree(t, map[string]string{"s.toml": tt.main, "conf.d/50-x.toml": tt.dropIn})
			t.Setenv("LOCKSIDECAR_SOCKET", filepath.Join(dir, "s.sock"))
			main, dropIn := filepath.Join(dir, "s.toml"), filepath.Join(dir, "conf.d/50-x.toml")
			want := strings.NewReplacer("MAIN", main, "DROPIN", dropIn).Replace(tt.want)
			for _, mode := range []string{"serve", "serve --check"} {
				refused(t, append(strings.Fields(mode), "--config", main), want)
			}
		})
	}
}

// refused has the settings of serve refused, in this process: a process for each would be most of the time.
func refused(t *testing.T, args []string, want string) {
	t.Helper()
	var stderr strings.Builder
	if code := dispatch(args, io.Discard, &stderr); code != exitUsage || !strings.Contains(stderr.String(), want) {
		t.Errorf("%q: exit code %d, stderr %q; want %d and %q", args, code, stderr.String(), exitUsage, want)
	}
}

func TestRefusedValueOfAVariableNamesIt(t *testing.T) {
	cleanEnv(t)
	t.Setenv("LOCKSIDECAR_LEASE", "2h")
	f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
	expectExit(t, start(t, f, "serve", "--check"), exitUsage, "choose 300ms to 1h0m0s ($LOCKSIDECAR_LEASE)")
	expectExit(t, start(t, f, "serve", "--check", "--lease=3h"), exitUsage, "lease 3h0m0s: choose 300ms to 1h0m0s\n")
}

// What cannot be read may set anything: the daemon does not start without it.
func TestConfDThatCannotBeReadIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(dir string) error
		want  string
	}{
		{"a directory with the name of a file", func(dir string) error { return os.Mkdir(dir+"/conf.d/x.toml", 0o755) }, "x.toml is not a regular file"},
		{"a FIFO", func(dir string) error { return unix.Mkfifo(dir+"/conf.d/x.toml", 0o644) }, "x.toml is not a regular file"},
		{"a link to nowhere", func(dir string) error { return os.Symlink("/nonexistent", dir+"/conf.d/x.toml") }, "x.toml: no such file"},
		{"a file in place of the directory", func(dir string) error {
			if err := os.Remove(dir + "/conf.d/a.toml"); err != nil {
				return err
			}
			if err := os.Remove(dir + "/conf.d"); err != nil {
				return err
			}
			return os.WriteFile(dir+"/conf.d", nil, 0o600)
		}, "conf.d cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := writeTree(t, map[string]string{"s.toml": "", "conf.d/a.toml": ""})
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := parseServe(t, "--config", dir+"/s.toml"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// Another user could make conf.d beside a settings file in a directory for all, such as /tmp.
func TestConfDOfAnotherUserIsRefused(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
	const other, third = 4711, 4712
	for _, tt := range []struct {
		name            string
		main, dir, file int
		isRefused       bool
	}{
		{"all of root", 0, 0, 0, false},
		{"all of one user", other, other, other, false},
		{"the directory of another user", 0, other, 0, true},
		{"a file of another user", 0, 0, other, true},
		{"a file of a third user", other, other, third, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := writeTree(t, map[string]string{"s.toml": "", "conf.d/a.toml": "max_locks = 7"})
			for path, uid := range map[string]int{"s.toml": tt.main, "conf.d": tt.dir, "conf.d/a.toml": tt.file} {
				if err := os.Chown(filepath.Join(dir, path), uid, 0); errors.Is(err, os.ErrPermission) {
					t.Skip("this root may not give files to another user: ", err)
				} else if err != nil {
					t.Fatal(err)
				}
			}
			_, err := parseServe(t, "--config", dir+"/s.toml")
			if tt.isRefused != (err != nil) || tt.isRefused && !strings.Contains(err.Error(), "who could set any setting") {
				t.Errorf("got %v, and refused should be %v", err, tt.isRefused)
			}
		})
	}
}

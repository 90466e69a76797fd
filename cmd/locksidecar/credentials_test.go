package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A sidecar that overlooks its Redis URL uses the Redis of its own host, and excludes no other
// host.
func TestCredentialThatNoSettingReadsIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		make       func(t *testing.T, dir string)
	}{
		{"a wrong name", `no setting reads the credential "redis_url"`, func(t *testing.T, dir string) {
			writeIn(t, dir, "redis_url", "redis://a.example")
		}},
		{"another wrong name", `the name must be redis-url`, func(t *testing.T, dir string) {
			writeIn(t, dir, "locksidecar", "redis://a.example")
		}},
		{"a directory that is a file", "not a directory", func(t *testing.T, dir string) {
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			writeIn(t, filepath.Dir(dir), filepath.Base(dir), "")
		}},
		{"a link to itself", "too many levels", func(t *testing.T, dir string) {
			if err := os.Symlink(credentialName, filepath.Join(dir, credentialName)); err != nil {
				t.Fatal(err)
			}
		}},
		{"a directory in its place", "cannot be read", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, credentialName), 0o700); err != nil {
				t.Fatal(err)
			}
		}},
		{"an empty one", "no Redis URL", func(t *testing.T, dir string) { writeIn(t, dir, credentialName, "") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cleanEnv(t)
			dir := filepath.Join(t.TempDir(), "creds")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			tt.make(t, dir)
			t.Setenv("CREDENTIALS_DIRECTORY", dir)
			c, err := parseServe(t)
			if err != nil {
				t.Fatal(err)
			}
			target, err := chooseRedis(&c.settings, c.resolver)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %+v, %v; want an error with %q", target, err, tt.want)
			}
		})
	}
}

func TestCredentialsOfOtherProgramsAreIgnored(t *testing.T) {
	cleanEnv(t)
	dir := t.TempDir()
	writeIn(t, dir, "passwd.hashed-password.root", "x")
	writeIn(t, dir, "my-redis", "redis://mine.example\n")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	c, err := parseServe(t, "--redis-file", filepath.Join(dir, "my-redis"))
	if err != nil {
		t.Fatal(err)
	}
	if target, err := chooseRedis(&c.settings, c.resolver); err != nil || target.shown != "redis://mine.example" {
		t.Errorf("got %+v, %v", target, err)
	}
}

func TestVariableThatNamesNoSettingIsRefused(t *testing.T) {
	cleanEnv(t)
	t.Setenv("LOCKSIDECAR_REDIS_SERVICE_HOST", "10.0.0.7")
	t.Setenv("LOCKSIDECAR_REDIS_PORT", "tcp://10.0.0.7:6379")
	c, err := parseServe(t)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := chooseRedis(&c.settings, c.resolver); err != nil {
		t.Errorf("what Kubernetes sets is refused: %v", err)
	}
	t.Setenv("LOCKSIDECAR_REDIS_URL", "redis://a.example")
	if _, err := chooseRedis(&c.settings, c.resolver); err == nil || !strings.Contains(err.Error(), "$LOCKSIDECAR_REDIS_URL") {
		t.Errorf("got %v", err)
	}
}

func writeIn(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVariablesOfKubernetesAndEmptyVariablesAreIgnored(t *testing.T) {
	for _, v := range []string{
		"LOCKSIDECAR_REDIS_URL=", "LOCKSIDECAR_REDIS_SERVICE_HOST=10.0.0.1", "LOCKSIDECAR_REDIS_PORT=tcp://10.0.0.1:6379",
		"LOCKSIDECAR_REDIS_MASTER_SERVICE_HOST=10.0.0.1", "LOCKSIDECAR_REDIS_MASTER_SERVICE_PORT_TCP_REDIS=6379",
		"LOCKSIDECAR_REDIS_HEADLESS_PORT_6379_TCP_ADDR=10.0.0.1",
	} {
		if err := checkVariables([]string{v}); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	for _, v := range []string{"LOCKSIDECAR_REDIS_URL=redis://a", "LOCKSIDECAR_REDIS_HOST=a"} {
		if err := checkVariables([]string{v}); err == nil {
			t.Errorf("%s is not refused", v)
		}
	}
}

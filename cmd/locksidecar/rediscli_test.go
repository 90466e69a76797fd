package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An operator's shell does not have the environment of the daemon: the settings file of the package and the
// credentials of its unit count, and a file that cannot be read is an error, not another Redis.
func TestRedisCLIFindsTheSettingsOfThePackage(t *testing.T) {
	for _, name := range []string{"LOCKSIDECAR_REDIS", "LOCKSIDECAR_CONFIG", "CREDENTIALS_DIRECTORY"} {
		t.Setenv(name, "")
	}
	write := func(dir, path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(dir+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := func(dir string) (string, error) {
		t.Setenv("CREDENTIALS_DIRECTORY", "")
		args, password, err := (&redisCLICmd{defaults: dir}).command(t.Context())
		return strings.Join(args, " ") + " with " + password, err
	}
	none, file, secret, broken := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	write(file, defaultConfig, "redis = \"redis://:pw@file:1/2\"\n")
	write(secret, serviceCredentials+"/redis-url", "redis://:pw@secret:1\n")
	if err := os.MkdirAll(broken+defaultConfig, 0o755); err != nil { // a directory: it exists and cannot be read
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		none:   "redis-cli -h 127.0.0.1 -p 6379 with ",
		file:   "redis-cli -h file -p 1 -n 2 with pw",
		secret: "redis-cli -h secret -p 1 with pw",
	} {
		if got, err := command(dir); got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	if got, err := command(broken); err == nil {
		t.Errorf("settings that cannot be read are %q", got)
	}
}

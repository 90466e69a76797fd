package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Systemd credentials are files in $CREDENTIALS_DIRECTORY, which only root and the daemon can
// read. A sidecar that overlooked the credential with the Redis URL would use another Redis,
// and exclude no other host. So a credential counts as not set only if its file does not
// exist, and a file with a similar name that no setting reads is an error.

// credentialName is the credential with the URL
// (LoadCredential=redis-url:/etc/locksidecar/redis-url).
const credentialName = "redis-url"

// credentialsDirectory returns the directory of the credentials; "": there is none. For
// ExecReload= of a unit with a mount namespace, systemd sets $CREDENTIALS_DIRECTORY, and makes
// the directory inaccessible (seen with version 252). The check of a reload then reads the
// credentials of the main process, which runs as the same user.
func credentialsDirectory() string {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if _, err := os.Stat(dir); dir != "" && errors.Is(err, fs.ErrPermission) {
		if pid, ok := mainProcess(); ok {
			return "/proc/" + pid + "/root" + dir
		}
	}
	return dir
}

// credential returns the path of a systemd credential; "": it is not set.
func credential(name string) (string, error) {
	dir := credentialsDirectory()
	if dir == "" {
		return "", nil
	}
	path := filepath.Join(dir, name)
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("the credential %s cannot be read: %w; check LoadCredential= of the unit, and that $CREDENTIALS_DIRECTORY is that of this service", name, err)
	}
	return path, nil
}

// checkCredentials returns an error if a credential looks like one of the daemon's and is not
// in known. used are files that settings name.
func checkCredentials(known []string, used ...string) error {
	dir := credentialsDirectory()
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the credentials cannot be listed: %w; check that $CREDENTIALS_DIRECTORY is that of this service", err)
	}
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		ours := slices.ContainsFunc([]string{"redis", "locksidecar", "url"}, func(part string) bool { return strings.Contains(name, part) })
		if ours && !slices.Contains(known, e.Name()) && !slices.Contains(used, filepath.Join(dir, e.Name())) {
			return fmt.Errorf("no setting reads the credential %q; the name must be %s: rename it in LoadCredential= of the unit", e.Name(), strings.Join(known, ", "))
		}
	}
	return nil
}

// kubernetesSuffix matches the end of the variables that Kubernetes sets for a service, such as
// locksidecar-redis or locksidecar-redis-master.
var kubernetesSuffix = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_|$)|$)`)

// checkVariables returns an error if an environment variable looks like the Redis URL and is
// not a setting. An empty variable counts as absent. Variables that Kubernetes sets for a
// service are allowed.
func checkVariables(environ []string) error {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		rest, ours := strings.CutPrefix(name, "LOCKSIDECAR_REDIS")
		if !ours || value == "" || slices.ContainsFunc(settingKeys(), func(key string) bool { return settingEnv(key) == name }) ||
			kubernetesSuffix.MatchString(rest) {
			continue
		}
		return fmt.Errorf("no setting reads the variable $%s; the Redis URL is $LOCKSIDECAR_REDIS (see locksidecar serve --help)", name)
	}
	return nil
}

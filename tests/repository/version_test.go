package repository

import (
	"path/filepath"
	"regexp"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// Both SDKs and the changelog have one version number. The daemon and the artefacts of a
// release take theirs from the Go SDK and the Python package; make release-check compares.
func TestSDKsAndChangelogHaveOneVersion(t *testing.T) {
	want := locksidecar.Version
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(want) {
		t.Errorf("sdk/go/version.go has %q; want three numbers", want)
	}
	for file, pattern := range map[string]string{
		"sdk/python/src/locksidecar/_version.py": `(?m)^__version__ = "(.*)"$`,
		"CHANGELOG.md":                           `(?m)^## \[(\d.*?)\] - `, // the newest
		"examples/compose/compose.yaml":          `image: localhost/locksidecar:(\S+)\n`,
		"examples/compose/README.md":             `docker-daemon:localhost/locksidecar:(\S+)\n`,
		"deploy/containers.md":                   `deploy/kustomize\?ref=v(\S+?)[,\]]`,
		"deploy/kustomize/daemonset.yaml":        `(?s)image: localhost/locksidecar:(\S+)\n.*image: localhost/locksidecar:[\d.]+\n`,
	} {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(read(t, filepath.Join(root, file))); m == nil || m[1] != want {
			t.Errorf("%s has the version %q; sdk/go/version.go has %q", file, m, want)
		}
	}
}

// The sdist and the wheel have a copy of the licence.
func TestPythonPackageHasTheLicence(t *testing.T) {
	if read(t, filepath.Join(root, "LICENSE")) != read(t, filepath.Join(root, "sdk", "python", "LICENSE")) {
		t.Error("sdk/python/LICENSE differs from LICENSE")
	}
}

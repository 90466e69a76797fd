package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// The daemon, both SDKs and the changelog have one version number. The artefacts of a
// release get theirs from the Go SDK and the Python package; make release-check compares.
func TestOneVersionNumber(t *testing.T) {
	want := locksidecar.Version
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(want) {
		t.Errorf("sdk/go/version.go has %q; want three numbers", want)
	}
	for file, pattern := range map[string]string{
		"../sdk/python/src/locksidecar/_version.py": `(?m)^__version__ = "(.*)"$`,
		"../CHANGELOG.md": `(?m)^## \[(\d.*?)\] - `, // the newest
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m == nil || string(m[1]) != want {
			t.Errorf("%s has the version %q; sdk/go/version.go has %q", file, m, want)
		}
	}
	out, err := exec.Command(harness.Program(), "version", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var printed struct{ Version, Build string }
	if err := json.Unmarshal(out, &printed); err != nil || printed.Version != want || printed.Build == "" {
		t.Errorf("the binary prints %s (%v); want version %q and a build", out, err, want)
	}
}

// An sdist and a wheel have a licence of their own, which is that of the repository.
func TestPythonPackageHasTheLicence(t *testing.T) {
	ours, err := os.ReadFile("../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("../sdk/python/LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	if string(ours) != string(theirs) {
		t.Error("sdk/python/LICENSE differs from LICENSE")
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// composeProject returns the example for Docker Compose, as Compose itself reads it: by its schema,
// with every name resolved.
func composeProject(t *testing.T, file string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file})
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// mounted returns what a service has at a path.
func mounted(t *testing.T, service types.ServiceConfig, path string) types.ServiceVolumeConfig {
	t.Helper()
	for _, v := range service.Volumes {
		if v.Target == path {
			return v
		}
	}
	t.Fatalf("the service %s mounts nothing at %s", service.Name, path)
	return types.ServiceVolumeConfig{}
}

// Two workers reach the socket of the daemon, which runs as the image is made, and none of them can
// replace the socket.
func TestComposeWorkersShareTheSocketOfTheDaemon(t *testing.T) {
	project, err := composeProject(t, filepath.Join("..", "examples", "compose", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	daemon, worker := project.Services["locksidecar"], project.Services["worker"]
	if want := imageName + ":" + version(t); daemon.Image != want {
		t.Errorf("the daemon has the image %s; want %s", daemon.Image, want)
	}
	if daemon.Pid != "host" {
		t.Error("the daemon does not see the processes of other containers")
	}
	const dir = "/run/locksidecar" // of imageLayer
	served, used := mounted(t, daemon, dir), mounted(t, worker, dir)
	if served.Type != types.VolumeTypeVolume || served.Source != used.Source || served.ReadOnly || !used.ReadOnly {
		t.Errorf("the daemon mounts %+v, and a worker %+v", served, used)
	}
	// The volume gets the owner of the directory in the image, so no worker gives it another one.
	if used.Volume == nil || !used.Volume.NoCopy || worker.DependsOn["locksidecar"].Condition != types.ServiceConditionHealthy {
		t.Error("a worker can be the first that mounts the volume, or the one that gives it an owner")
	}
	if !slices.Equal(worker.GroupAdd, []string{fmt.Sprint(imageUser)}) {
		t.Errorf("a worker has the groups %q, and the socket the group %d", worker.GroupAdd, imageUser)
	}
	if n := worker.GetScale(); n != 2 {
		t.Errorf("%d workers", n)
	}
	if daemon.HealthCheck == nil || !slices.Equal(daemon.HealthCheck.Test, []string{"CMD", "/usr/bin/locksidecar", "ping"}) {
		t.Errorf("the check of the daemon is %+v", daemon.HealthCheck)
	}

	// What is built and mounted exists, and the settings are settings.
	for _, path := range []string{filepath.Join(worker.Build.Context, "pyproject.toml"), mounted(t, worker, "/worker.py").Source} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	keys, err := os.ReadFile(filepath.Join("..", "deploy", "locksidecar.example.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for name := range daemon.Environment {
		key, ok := strings.CutPrefix(name, "LOCKSIDECAR_")
		if !ok || !strings.Contains(string(keys), "\n#"+strings.ToLower(key)+" = ") {
			t.Errorf("the daemon has no setting %s", name)
		}
	}
}

// The check above notices a key that Compose does not have.
func TestComposeRefusesAKeyThatDoesNotExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "examples", "compose", "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "compose.yaml")
	if err := os.WriteFile(wrong, []byte(strings.ReplaceAll(string(text), "group_add:", "groups:")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := composeProject(t, wrong); err == nil || !strings.Contains(err.Error(), "groups") {
		t.Errorf("a service with the key groups: %v", err)
	}
}

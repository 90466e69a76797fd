package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The manifest has only fields that Kubernetes has, and the image, its user and its directory
// are those of the image that is built here.
func TestDaemonSetRunsTheImage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "deploy", "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile(filepath.Join("..", "sdk", "go", "version.go"))
	if err != nil {
		t.Fatal(err)
	}
	image := imageName + ":" + string(regexp.MustCompile(`const Version = "(.*)"`).FindSubmatch(version)[1])
	pod := set.Spec.Template.Spec
	if !pod.HostPID {
		t.Error("the daemon does not see the processes of the host")
	}
	if pod.HostUsers != nil && !*pod.HostUsers {
		t.Error("the daemon is in a user namespace")
	}
	if user := pod.SecurityContext.RunAsUser; user == nil || *user != imageUser {
		t.Errorf("the user of the daemon is not %d", imageUser)
	}
	var run *corev1.HostPathVolumeSource
	for _, v := range pod.Volumes {
		if v.Name == "run" {
			run = v.HostPath
		}
	}
	if run == nil || run.Path != "/run/locksidecar" || *run.Type != corev1.HostPathDirectoryOrCreate {
		t.Errorf("the directory of the socket and the state is %+v", run)
	}
	containers := append(pod.InitContainers, pod.Containers...)
	if len(containers) != 2 {
		t.Fatalf("%d containers", len(containers))
	}
	for _, c := range containers {
		if c.Image != image {
			t.Errorf("%s has the image %s; want %s", c.Name, c.Image, image)
		}
		if c.VolumeMounts[0].MountPath != run.Path {
			t.Errorf("%s does not mount %s", c.Name, run.Path)
		}
	}
	if want := fmt.Sprintf("[prepare --uid %d --gid %d %s]", imageUser, imageUser, run.Path); fmt.Sprint(containers[0].Args) != want {
		t.Errorf("the init container has the arguments %v; want %s", containers[0].Args, want)
	}
}

package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kustomize holds the base and its component.
const kustomize = "../deploy/kustomize"

// build returns the objects that Kustomize makes of a directory, by kind. They have only fields that
// their types have.
func build(t *testing.T, dir string) map[string]any {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]any{
		"ServiceAccount": new(corev1.ServiceAccount),
		"ConfigMap":      new(corev1.ConfigMap),
		"NetworkPolicy":  new(networkingv1.NetworkPolicy),
		"DaemonSet":      new(appsv1.DaemonSet),
		"PodMonitor":     new(monitoringv1.PodMonitor),
	}
	built := make(map[string]any)
	for _, r := range made.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		object, again := objects[r.GetKind()], built[r.GetKind()] != nil
		if object == nil || again {
			t.Fatalf("%s has a second or unknown %s", dir, r.GetKind())
		}
		if err := yaml.UnmarshalStrict(text, object); err != nil {
			t.Fatalf("%s of %s: %v", r.GetKind(), dir, err)
		}
		built[r.GetKind()] = object
	}
	return built
}

// manifest returns the objects of the base.
func manifest(t *testing.T) (settings *corev1.ConfigMap, network *networkingv1.NetworkPolicy, set *appsv1.DaemonSet) {
	t.Helper()
	built := build(t, kustomize)
	if kinds := slices.Sorted(maps.Keys(built)); !slices.Equal(kinds, []string{"ConfigMap", "DaemonSet", "NetworkPolicy", "ServiceAccount"}) {
		t.Fatalf("the objects are %q", kinds)
	}
	return built["ConfigMap"].(*corev1.ConfigMap), built["NetworkPolicy"].(*networkingv1.NetworkPolicy), built["DaemonSet"].(*appsv1.DaemonSet)
}

// The kustomization in the documents, with the base of this tree in the place of that of the release.
func TestKustomizationOfTheDocumentsHasItsSettingsAndImage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "deploy", "containers.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n# kustomization.yaml\n")
	text, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("containers.md has no kustomization.yaml")
	}
	dir := t.TempDir()
	base, err := filepath.Abs(kustomize)
	if err != nil {
		t.Fatal(err)
	}
	if base, err = filepath.Rel(dir, base); err != nil {
		t.Fatal(err)
	}
	text = strings.NewReplacer("https://github.com/locksidecar/locksidecar//deploy/kustomize", base, "?ref=v"+version(t), "").Replace(text)
	if strings.Contains(text, "ref=") {
		t.Fatalf("it names another version than %s:\n%s", version(t), text)
	}
	for name, content := range map[string]string{"kustomization.yaml": text, "locksidecar.toml": "lease = \"61s\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built := build(t, dir)
	settings, set := built["ConfigMap"].(*corev1.ConfigMap), built["DaemonSet"].(*appsv1.DaemonSet)
	if got := setting(t, settings, "lease"); got != "61s" || len(settings.Data) != 1 {
		t.Errorf("the settings are %q", settings.Data)
	}
	pod := set.Spec.Template.Spec
	for _, v := range pod.Volumes {
		if v.Name == "settings" && v.ConfigMap.Name != "locksidecar" {
			t.Errorf("the pods have the settings %s: new ones restart them", v.ConfigMap.Name)
		}
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		if want := "registry.example/locksidecar:" + version(t); c.Image != want {
			t.Errorf("%s has the image %s; want %s", c.Name, c.Image, want)
		}
	}
	if set.Namespace != "locksidecar" {
		t.Errorf("the namespace is %q", set.Namespace)
	}
	// Prometheus finds the port of the pods.
	monitor := built["PodMonitor"].(*monitoringv1.PodMonitor)
	ends := monitor.Spec.PodMetricsEndpoints
	if len(ends) != 1 || ends[0].Port == nil || *ends[0].Port != pod.Containers[0].Ports[0].Name {
		t.Errorf("the PodMonitor reads %+v", ends)
	}
	if labels := set.Spec.Template.Labels; !maps.Equal(monitor.Spec.Selector.MatchLabels, labels) || labels[monitor.Spec.JobLabel] != "locksidecar" {
		t.Errorf("the PodMonitor selects %v and has the job of %s; the pods have %v", monitor.Spec.Selector.MatchLabels, monitor.Spec.JobLabel, labels)
	}
}

// The daemon has an account of its own, and no container has a token of it.
func TestDaemonSetHasAnAccountWithoutToken(t *testing.T) {
	built := build(t, kustomize)
	account, pod := built["ServiceAccount"].(*corev1.ServiceAccount), built["DaemonSet"].(*appsv1.DaemonSet).Spec.Template.Spec
	if pod.ServiceAccountName != account.Name {
		t.Errorf("the pods have the account %q; it is %q", pod.ServiceAccountName, account.Name)
	}
	for _, mount := range []*bool{account.AutomountServiceAccountToken, pod.AutomountServiceAccountToken} {
		if mount == nil || *mount {
			t.Error("the pods get a token of Kubernetes")
		}
	}
}

// setting returns the text of a setting in the ConfigMap.
func setting(t *testing.T, settings *corev1.ConfigMap, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + key + ` = "(.*)"$`).FindStringSubmatch(settings.Data["locksidecar.toml"])
	if found == nil {
		t.Fatalf("the ConfigMap does not set %s", key)
	}
	return found[1]
}

// version returns the version of this tree.
func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "sdk", "go", "version.go"))
	if err != nil {
		t.Fatal(err)
	}
	return string(regexp.MustCompile(`const Version = "(.*)"`).FindSubmatch(text)[1])
}

// A lock has two thirds of its lease left at least when a daemon hangs, because it is renewed each
// third. The rest of the second half is for the start of the next daemon.
func TestHangingDaemonIsKilledWithinHalfOfTheLease(t *testing.T) {
	settings, _, set := manifest(t)
	lease, err := time.ParseDuration(setting(t, settings, "lease"))
	if err != nil {
		t.Fatal(err)
	}
	probe := set.Spec.Template.Spec.Containers[0].LivenessProbe
	if probe == nil || probe.TerminationGracePeriodSeconds == nil || probe.TimeoutSeconds == 0 || probe.PeriodSeconds == 0 || probe.FailureThreshold == 0 {
		t.Fatalf("the liveness probe leaves times to defaults: %+v", probe)
	}
	// The daemon hangs as a probe has succeeded. The next one begins a period later, and fails
	// after its timeout. One that takes longer than a period delays the next one.
	worst := probe.PeriodSeconds + (probe.FailureThreshold-1)*max(probe.PeriodSeconds, probe.TimeoutSeconds) + probe.TimeoutSeconds
	killed := time.Duration(int64(worst)+*probe.TerminationGracePeriodSeconds) * time.Second
	if killed >= lease/2 {
		t.Errorf("a daemon that hangs is killed %v later at worst; choose less than half of the lease of %v", killed, lease)
	}
	// The documents have the number.
	for _, name := range []string{"kustomize/daemonset.yaml", "containers.md"} {
		text, err := os.ReadFile(filepath.Join("..", "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%.0f s later at most", killed.Seconds()); !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %q", name, want)
		}
	}
}

// What the settings name is mounted, and Prometheus reaches the metrics.
func TestDaemonSetMountsWhatTheSettingsName(t *testing.T) {
	settings, network, set := manifest(t)
	pod := set.Spec.Template.Spec
	daemon := pod.Containers[0]
	mounted := make(map[string]string) // the volumes, by path
	for _, m := range daemon.VolumeMounts {
		if m.SubPath != "" {
			t.Errorf("%s is mounted by a subPath, which Kubernetes does not update", m.MountPath)
		}
		mounted[m.MountPath] = m.Name
	}
	volumes := make(map[string]corev1.VolumeSource)
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.VolumeSource
	}
	path := daemon.Args[len(daemon.Args)-1]
	if want := []string{"serve", "--config", path}; !slices.Equal(daemon.Args, want) || settings.Data[filepath.Base(path)] == "" {
		t.Errorf("the arguments are %q", daemon.Args)
	}
	if v := volumes[mounted[filepath.Dir(path)]].ConfigMap; v == nil || v.Name != settings.Name {
		t.Errorf("the settings %s are not mounted", path)
	}
	secret := setting(t, settings, "redis_file")
	if v := volumes[mounted[filepath.Dir(secret)]].Secret; v == nil || *v.DefaultMode&0o007 != 0 || filepath.Base(secret) != "url" {
		t.Errorf("the secret %s is not mounted, or all can read it", secret)
	}
	_, port, err := net.SplitHostPort(setting(t, settings, "metrics"))
	if err != nil || len(daemon.Ports) != 1 || strconv.Itoa(int(daemon.Ports[0].ContainerPort)) != port || daemon.Ports[0].Name != "metrics" {
		t.Errorf("the port of the metrics is %s (%v), and the container has %+v", port, err, daemon.Ports)
	}
	if rule := network.Spec.Ingress; len(rule) != 1 || len(rule[0].From) != 1 || len(rule[0].Ports) != 1 || rule[0].Ports[0].Port.String() != "metrics" {
		t.Errorf("the NetworkPolicy admits %+v", rule)
	}
	labels := set.Spec.Template.Labels
	for key, value := range network.Spec.PodSelector.MatchLabels {
		if labels[key] != value {
			t.Errorf("the NetworkPolicy is for %s=%s, and the pods have %v", key, value, labels)
		}
	}
	if len(network.Spec.PodSelector.MatchLabels) == 0 {
		t.Error("the NetworkPolicy is for all pods of the namespace")
	}
}

// The image, its user and its directory are those of the image that is built here.
func TestDaemonSetRunsTheImage(t *testing.T) {
	_, _, set := manifest(t)
	image := imageName + ":" + version(t)
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

package cli

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The commands of the runbooks run with each kind of URL. The password of Redis is in no argument.
func TestRedisCLIConnectsToEachKindOfRedis(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-cli"); err != nil {
		t.Skip(err)
	}
	var commands []string
	for _, page := range readRunbooks(t) {
		for _, c := range commandsOf(page) {
			if c, is := strings.CutPrefix(c, "locksidecar redis-cli "); is {
				c, _, _ = strings.Cut(c, ";")
				c, _, _ = strings.Cut(c, " |")
				commands = append(commands, c)
			}
		}
	}
	if len(commands) < 6 {
		t.Errorf("the runbooks have %d commands of redis-cli: %q", len(commands), commands)
	}
	const password = "s3/cr:et@x"
	secured := harness.StartRedis(t)
	secured.MustDo("ACL", "SETUSER", "app", "on", ">"+password, "~*", "&*", "+@all")
	master, _ := harness.StartReplicas(t, 1)
	for kind, url := range map[string]string{
		"one server":  "redis://app:s3%2Fcr%3Aet%40x@" + strings.TrimPrefix(secured.TCPURL(), "redis://"),
		"Sentinels":   harness.StartSentinels(t, master, 1).URL(),
		"one Cluster": harness.StartCluster(t, 3, 0).URL(),
	} {
		env := []string{"LOCKSIDECAR_REDIS=" + url}
		for _, c := range commands {
			args := append([]string{"redis-cli"}, strings.Fields(c)...)
			if got := harness.RunProgram(t, env, args...); got.Code != 0 || got.Stdout == "" {
				t.Errorf("%s: %s ends with %d: %s%s", kind, c, got.Code, got.Stdout, got.Stderr)
			}
		}
		printed := harness.RunProgram(t, env, "redis-cli", "--print", "ping").Stdout
		if strings.Contains(printed, "s3") || !strings.HasSuffix(printed, " ping\n") || strings.Contains(url, "@") != strings.HasPrefix(printed, "REDISCLI_AUTH=… redis-cli -h ") {
			t.Errorf("%s: printed %q", kind, printed)
		}
	}
	if got := harness.RunProgram(t, []string{"LOCKSIDECAR_REDIS=" + master.TCPURL()}, "redis-cli", "role"); !strings.HasPrefix(got.Stdout, "master\n") {
		t.Errorf("role is %q", got.Stdout)
	}
	watched := harness.StartSentinels(t, master, 1, "requirepass sentinels-secret")
	node := strings.TrimPrefix(watched[:1].URL(), "redis+sentinel://")
	node, _, _ = strings.Cut(node, "/")
	if got := harness.RunProgram(t, []string{"LOCKSIDECAR_REDIS=" + watched.URL() + "?sentinel_password=sentinels-secret"}, "redis-cli", "--node", node, "sentinel", "master", harness.MasterName); got.Code != 0 || !strings.Contains(got.Stdout, "config-epoch") {
		t.Errorf("at a Sentinel it ends with %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	for url, want := range map[string]string{
		"redis+sentinel://127.0.0.1:1/mymaster": "no Sentinel names the master \"mymaster\"",
		"redis+cluster://127.0.0.1:1":           "no node of the Cluster answers that the URL names",
	} {
		got := harness.RunProgram(t, []string{"LOCKSIDECAR_REDIS=" + url}, "redis-cli", "ping")
		if got.Code != 69 || !strings.Contains(got.Stderr, want) || !strings.Contains(got.Stderr, "--node HOST:PORT") {
			t.Errorf("%s ends with %d: %s", url, got.Code, got.Stderr)
		}
	}
	if got := harness.RunProgram(t, []string{"LOCKSIDECAR_EMBEDDED=true"}, "redis-cli", "ping"); got.Code != 64 || !strings.Contains(got.Stderr, "a Redis of its own") {
		t.Errorf("with an embedded Redis it ends with %d: %s", got.Code, got.Stderr)
	}
}

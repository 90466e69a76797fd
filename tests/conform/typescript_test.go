package conform

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The example of the TypeScript client: two workers take turns, and tryLock fails while the lock
// is held.
func TestTypeScriptExampleLocksWithRealDaemon(t *testing.T) {
	t.Parallel()
	node, dist := harness.TypeScript(t)
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	cmd := exec.Command(node, filepath.Join(dist, "example.js"), "invoice:42")
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := regexp.MustCompile(`^first holds invoice:42 with the token (\d+)
first is done
second holds invoice:42 with the token (\d+)
second is done
while invoice:42 is held, tryLock fails
$`)
	m := want.FindStringSubmatch(string(out))
	if m == nil || len(m[1]) != len(m[2]) || m[1] >= m[2] {
		t.Errorf("the example prints\n%s", out)
	}
	if _, err := harness.Dial(t, d).TryLock(t.Context(), "invoice:42"); err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// A lock that a TypeScript program holds stays held, with its token, over a kill -9 of the
// daemon, and is lost when an operator ends it.
func TestTypeScriptClientSurvivesRestartOfDaemon(t *testing.T) {
	t.Parallel()
	node, dist := harness.TypeScript(t)
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	p := startDriver(t, node, filepath.Join(dist, "driver.js"))
	p.send(`{"n":1,"do":"open","socket":"` + d.Socket + `"}`)
	p.want(`"n":1,"ok":true`)
	p.send(`{"n":2,"do":"acquire","as":"a","name":"a"}`)
	p.want(`"n":2,"ok":true,"token":`)

	d.Kill()
	d.Start()
	d.AwaitSocket()
	p.send(`{"n":3,"do":"acquire","as":"b","name":"b"}`)
	p.want(`"n":3,"ok":true,"token":`)
	p.send(`{"n":4,"do":"check","as":"a"}`)
	p.want(`"n":4,"held":true`)
	if row, ok, err := harness.Dial(t, d).Info(t.Context(), "a"); err != nil || !ok || row.Count != 1 || row.Absent {
		t.Errorf("the daemon shows %+v, %t, %v; want a hold whose client has resumed its session", row, ok, err)
	}

	if out := d.Run("force-release", "a"); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	p.want(`"lost":"a","reason":"forced"`)
	p.send(`{"n":5,"do":"close"}`)
	p.want(`"n":5,"ok":true`)
}

package conform

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// The example of the TypeScript client: two workers take turns, tryLock fails while the lock is
// held, and two of three workers have the two permits of a semaphore.
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
of three workers, 2 had permits of invoice:42:slots at one time
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

// Permits that a TypeScript program holds stay held over a kill -9 of the daemon, and a waiter is queued again: it is
// granted when enough permits are free. When an operator ends one hold, the program loses that one.
func TestTypeScriptClientKeepsPermitsOverRestartOfDaemon(t *testing.T) {
	t.Parallel()
	node, dist := harness.TypeScript(t)
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	p := startDriver(t, node, filepath.Join(dist, "driver.js"))
	p.send(`{"n":1,"do":"open","socket":"` + d.Socket + `"}`)
	p.want(`"n":1,"ok":true`)
	p.send(`{"n":2,"do":"acquire","as":"two","name":"api","permits":2,"of":4}`)
	p.want(`"n":2,"ok":true`)
	p.send(`{"n":3,"do":"acquire","as":"one","name":"api","of":4}`)
	p.want(`"n":3,"ok":true`)
	p.send(`{"n":4,"do":"acquire","as":"try","name":"api","permits":2,"of":4,"wait_ms":0}`)
	p.want(`"n":4,"error":"timeout"`)
	p.send(`{"n":5,"do":"acquire","as":"waiter","name":"api","permits":3,"of":4}`)

	d.Kill()
	d.Start()
	d.AwaitSocket()
	p.send(`{"n":6,"do":"release","as":"two"}`)
	p.want(`"n":6,"ok":true`)
	p.want(`"n":5,"ok":true`)
	p.send(`{"n":7,"do":"check","as":"one"}`)
	p.want(`"n":7,"held":true`)

	row := harness.DialRaw(t, d).Call(harness.Message{"op": "info", "name": "api"})["lock"].(harness.Message)
	holders := row["holders"].([]any)
	if len(holders) != 2 || fmt.Sprint(row["permits"], row["of"]) != "4 4" {
		t.Fatalf("the daemon shows %v; want 4 of 4 permits, in two holds", row)
	}
	oldest := holders[0].(harness.Message)["hold"]
	if a := harness.DialRaw(t, d).Call(harness.Message{"op": "force_release", "name": "api", "hold": oldest}); a["err"] != nil {
		t.Fatal(a)
	}
	p.want(`"lost":"one","reason":"forced"`)
	p.send(`{"n":8,"do":"check","as":"waiter"}`)
	p.want(`"n":8,"held":true`)
	p.send(`{"n":9,"do":"close"}`)
	p.want(`"n":9,"ok":true`)
}

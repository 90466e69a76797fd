package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// A master that needs fewer replicas than it has goes on granting locks after one of them was promoted.
//
// Shows docs/guarantees.md: `SENTINEL FAILOVER`, without that setting.
func TestNumberOfReplicasThatIsWrongIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name     string
		replicas int
		args     []string
		user     []string // its ACL rules; nil: the default user
		change   func(*Config)
		says     string // "": nothing
	}{
		{"no replica", 0, nil, nil, nil, ""},
		{"a replica", 1, nil, nil, nil, "has a replica, and also grants locks when it has lost them (min-replicas-to-write is 0)"},
		{"a replica that it needs", 1, []string{"--min-replicas-to-write", "1"}, nil, nil, ""},
		{"a replica that confirms", 1, nil, nil, func(c *Config) { c.Replicas = 1 }, ""},
		{"it needs one of two", 2, []string{"--min-replicas-to-write", "1"}, nil, nil, "has 2 replicas, and grants locks with 1 of them (min-replicas-to-write)"},
		{"it needs two of two", 2, []string{"--min-replicas-to-write", "2"}, nil, nil, ""},
		{"one of two confirms", 2, nil, nil, func(c *Config) { c.Replicas = 1 }, "has 2 replicas, of which 1 must confirm each lock (durability)"},
		{"one of two confirms, and it needs two", 2, []string{"--min-replicas-to-write", "2"}, nil, func(c *Config) { c.Replicas = 1 }, ""},
		{"the setting cannot be read", 2, []string{"--min-replicas-to-write", "1"}, []string{"-config|get"}, nil, "may not read min-replicas-to-write"},
		{"it cannot, and one of one is needed", 1, []string{"--min-replicas-to-write", "1"}, []string{"-config|get"}, nil, ""},
		{"it cannot, and INFO shows that none is needed", 1, nil, []string{"-config|get"}, nil, "(min-replicas-to-write is 0)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			master := startRedis(t, append([]string{"--repl-diskless-sync-delay", "0"}, tt.args...)...)
			for range tt.replicas {
				startRedis(t).follow(master)
			}
			url := master.url()
			if tt.user != nil {
				url = master.userURL("limited", append([]string{"~*", "&*", "+@all"}, tt.user...)...)
			}
			risks := make(chan string, 10)
			onRisk := func(c *Config) { c.on(Risk, func(e Event) { risks <- e.Text }) }
			change := tt.change
			if change == nil {
				change = func(*Config) {}
			}
			r := connected(t, url, change, onRisk)
			r.one(takeOp("lock", 1)) // the risk is reported before any operation is sent
			risk := ""
			select {
			case risk = <-risks:
			default:
			}
			set := fmt.Sprintf("set min-replicas-to-write %d there, or durability = \"replicas:%d\"", tt.replicas, tt.replicas)
			switch log := r.logged(); {
			case tt.says == "" && (risk != "" || strings.Contains(log, pipeline.MinReplicas)):
				t.Errorf("%q; the log is:\n%s", risk, log)
			case tt.says != "" && (!strings.Contains(risk, tt.says) || !strings.Contains(risk, set) || !strings.Contains(log, tt.says)):
				t.Errorf("%q; the log is:\n%s", risk, log)
			}
		})
	}
}

// Replicas come and go, and an operator changes the setting. Both are noticed while the connection lasts.
func TestNumberOfReplicasIsReadAgain(t *testing.T) {
	master := startRedis(t, "--repl-diskless-sync-delay", "0")
	risks := make(chan string, 10)
	r := connected(t, master.url(), func(c *Config) { c.on(Risk, func(e Event) { risks <- e.Text }) })
	next := func() string {
		t.Helper()
		for end := time.After(patience); ; {
			r.ageIdle()
			select {
			case risk := <-risks:
				return risk
			case <-time.After(10 * time.Millisecond):
			case <-end:
				t.Fatal("no change of the risk is reported")
			}
		}
	}
	startRedis(t).follow(master)
	if risk := next(); !strings.Contains(risk, "has a replica") {
		t.Errorf("after a replica came: %q", risk)
	}
	master.admin().ConfigSet(ctx, pipeline.MinReplicas, "1")
	if risk := next(); risk != "" {
		t.Errorf("after the setting was made right: %q", risk)
	}
	startRedis(t).follow(master)
	if risk := next(); !strings.Contains(risk, "has 2 replicas, and grants locks with 1 of them") {
		t.Errorf("after a second replica came: %q", risk)
	}
	if n := strings.Count(r.logged(), "two owners may have one lock"); n != 2 {
		t.Errorf("%d warnings are logged:\n%s", n, r.logged())
	}
}

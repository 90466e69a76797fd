package store

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// A Redis that deletes keys when its memory is full is named when the daemon connects.
//
// Shows docs/guarantees.md: Full.
func TestRedisThatEvictsIsNamed(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		user []string // its ACL rules; nil: the default user
		says string   // "": nothing
	}{
		{"noeviction", []string{"--maxmemory", "50mb", "--maxmemory-policy", "noeviction"}, nil, ""},
		{"any key", []string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"}, nil, "maxmemory-policy allkeys-lru"},
		{"keys that expire, as locks do", []string{"--maxmemory", "50mb", "--maxmemory-policy", "volatile-ttl"}, nil, "maxmemory-policy volatile-ttl"},
		{"no limit of memory", []string{"--maxmemory", "0", "--maxmemory-policy", "allkeys-lru"}, nil, ""},
		{"INFO is not permitted", []string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"}, []string{"-info"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t, tt.args...)
			url := server.url()
			if tt.user != nil {
				url = server.userURL("limited", append([]string{"~*", "&*", "+@all"}, tt.user...)...)
			}
			risks := make(chan string, 10)
			r := connected(t, url, func(c *Config) { c.on(Risk, func(e Event) { risks <- e.Text }) })
			r.one(takeOp("lock", 1)) // the risk is reported before any operation is sent
			risk := ""
			select {
			case risk = <-risks:
			default:
			}
			logged := strings.Contains(r.logged(), "Redis may delete locks that are held")
			if strings.Contains(risk, "set maxmemory-policy noeviction there") != (tt.says != "") || !strings.Contains(risk, tt.says) || logged != (tt.says != "") {
				t.Errorf("%q; the log is:\n%s", risk, r.logged())
			}
			if gone := r.OnKeysGone("lock"); !strings.Contains(gone, tt.says) || (gone != "") != (tt.says != "") {
				t.Errorf("a loss says %q", gone)
			}
		})
	}
}

// After keys of held locks are gone, the number of evicted keys is read again.
//
// Shows docs/guarantees.md: Full.
func TestEvictedKeysAreCountedWhenKeysAreGone(t *testing.T) {
	t.Parallel()
	server := startRedis(t, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-random")
	risks := make(chan string, 10)
	r := connected(t, server.url(), func(c *Config) { c.on(Risk, func(e Event) { risks <- e.Text }) })
	await := func(words string) {
		t.Helper()
		for end := time.After(patience); ; {
			select {
			case risk := <-risks:
				if strings.Contains(risk, words) && (words != "" || risk == "") {
					return
				}
			case <-end:
				t.Fatalf("no risk with %q is reported", words)
			}
		}
	}
	await("allkeys-random")
	admin := server.admin()
	must(admin.ConfigSet(ctx, "maxmemory", "3mb").Result())
	for i := 0; !strings.Contains(infoOf(t, server, "stats"), "evicted_keys:") || strings.Contains(infoOf(t, server, "stats"), "evicted_keys:0\r"); i++ {
		admin.Set(ctx, "cache:"+strconv.Itoa(i), strings.Repeat("x", 100_000), 0)
	}
	if gone := r.OnKeysGone("lock"); gone == "" {
		t.Error("a loss does not say that Redis evicts keys")
	}
	await("evicted_keys grew by ")
	if gone := r.OnKeysGone("lock"); !strings.Contains(gone, "evicted_keys grew by ") {
		t.Errorf("a loss says %q", gone)
	}
	if n := strings.Count(r.logged(), "Redis has evicted keys"); n != 1 {
		t.Errorf("%d lines:\n%s", n, r.logged())
	}
	must(admin.ConfigSet(ctx, "maxmemory-policy", "noeviction").Result())
	r.single.link.With(func(m *pipeline.Machine) { m.KeysGone(protocol.Now() + 2e9) }) // the numbers are read once a second
	await("")
}

func infoOf(t *testing.T, server *server, section string) string {
	t.Helper()
	return must(server.admin().Info(ctx, section).Result())
}

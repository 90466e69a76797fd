package main

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func testRedis(t *testing.T) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed")
		}
		t.Skip("redis-server is not installed")
	}
	s, err := startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// Each client has every operation carried out once: what is compared is the same work.
func TestClientsCarryOutEachOperationOnce(t *testing.T) {
	s := testRedis(t)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			s.admin.FlushAll(t.Context())
			locks, err := c.open(t.Context(), s, wire.AcquireRelease.Text)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.close()
			s.admin.ConfigResetStat(t.Context())
			l := newLoad(locks, 16)
			l.start()
			for l.ops.Load() < 2000 && len(l.failed) == 0 {
				runtime.Gosched()
			}
			if err := l.stop(); err != nil {
				t.Fatal(err)
			}
			info, err := s.admin.Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"hset", "publish"} {
				calls, _, _ := strings.Cut(field(info, "cmdstat_"+command+":calls="), ",")
				if n, _ := strconv.ParseInt(calls, 10, 64); 2*n != l.ops.Load() {
					t.Errorf("%d calls of %s for %d operations", n, command, l.ops.Load())
				}
			}
			if keys, err := s.admin.Keys(t.Context(), "clients:*").Result(); err != nil || len(keys) > 0 {
				t.Errorf("locks are left: %v, %v", keys, err)
			}
		})
	}
}

func TestTableHasMediansAndRatiosOfEachRound(t *testing.T) {
	results := make([][]figures, len(clients))
	for i := range results {
		rates := []float64{50, 50, 600}
		if i == 0 {
			rates = []float64{100, 200, 300}
		}
		for _, rate := range rates {
			results[i] = append(results[i], figures{rate: rate, clientCPU: 2, redisCPU: 4, allocs: 8, batch: 16})
		}
	}
	var out strings.Builder
	print(&out, "7.0.15", 3, time.Second, 64, results)
	for i, c := range clients {
		want := "\n| " + c.name + " | 50 (0.50, 0.25–2.00) | 2.00 (1.00, 1.00–1.00) | 4.00 (1.00, 1.00–1.00) | 8.0 | 16.0 |\n"
		if i == 0 {
			want = "\n| " + c.name + " | 200 | 2.00 | 4.00 | 8.0 | 16.0 |\n"
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q:\n%s", want, out.String())
		}
	}
}

package store

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// replicaStream is what a server sends to a replica, which is the test. It confirms nothing.
type replicaStream struct {
	mu   sync.Mutex
	text []byte
}

// followSilently makes the test a replica of a server.
func followSilently(t testing.TB, address string) *replicaStream {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("PSYNC ? -1\r\n")); err != nil {
		t.Fatal(err)
	}
	r := new(replicaStream)
	var reading sync.WaitGroup
	reading.Go(func() { io.Copy(r, conn) })
	t.Cleanup(func() { conn.Close(); reading.Wait() })
	return r
}

func (r *replicaStream) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, bytes.ToLower(text)...)
	return len(text), nil
}

// until waits until the server has sent a key, and returns what it has sent.
func (r *replicaStream) until(t testing.TB, key string) string {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		text := string(r.text)
		r.mu.Unlock()
		if strings.Contains(text, key) {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("the replica does not get %s: %q", key, text)
		}
	}
}

// hasWrite reports whether a replica has received a write of a lock, or its release.
func hasWrite(text, name string) bool {
	return regexp.MustCompile(`(hdel|publish)\r\n\$\d+\r\n[a-z_:{]*` + name).MatchString(text)
}

// The danger: a WAIT covers what its own connection wrote, in newer servers nothing else. So a release that an
// earlier connection executed is confirmed, and no replica has it.
//
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
func TestDropThatFindsNothingIsWrittenForReplicas(t *testing.T) {
	master := startRedis(t, "--repl-diskless-sync-delay", "0")
	a := master.admin()
	stream := followSilently(t, master.tcp())
	publishes := master.userURL("publishes", append(slices.Clone(leastRules), "+wait")...)
	silent := master.userURL("silent", append(slices.Clone(leastRules), "+wait", "-publish", "-spublish")...)
	a.Set(ctx, "attached", 1, 0)
	stream.until(t, "attached")
	for i, tt := range []struct{ name, url, field string }{
		{"the key is gone", publishes, ""},
		{"the user may not publish", silent, ""},
		{"another host has the lock", publishes, field(otherUUID, 7)},
		{"this host has it again", publishes, field(ourUUID, 9)},
		{"another host has it, and waiters a queue", publishes, field(otherUUID, 7)},
		{"a try of what another host has", publishes, field(otherUUID, 7)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, name := master.admin(), fmt.Sprintf("lock%d", i)
			if tt.field != "" {
				a.HSet(ctx, name, tt.field, "1")
				a.PExpire(ctx, name, patience)
			}
			if strings.Contains(tt.name, "queue") {
				a.ZAdd(ctx, wire.QueuePrefix+"{"+name+"}", redis.Z{Score: 1, Member: field(secondUUID, 3)})
			}
			had := must(a.HGetAll(ctx, name).Result())
			r := connected(t, tt.url, replicated(1))
			if strings.HasPrefix(tt.name, "a try") {
				if res := r.one(takeOp(name, 3)); res.Outcome != redisop.HeldByOther || !res.Unsynced {
					t.Errorf("no replica has it: %+v", res)
				}
			} else if res := r.one(dropOp(name, 3)); res.Outcome != redisop.NotSynced {
				t.Errorf("no replica has it: %+v", res)
			}
			a.Set(ctx, "after-"+name, 1, 0)
			if text := stream.until(t, "after-"+name); !hasWrite(text, name) {
				t.Errorf("nothing was written: %q", text)
			}
			if left := must(a.HGetAll(ctx, name).Result()); !maps.Equal(left, had) {
				t.Errorf("the key has %v, and had %v", left, had)
			}
			if left := must(a.PTTL(ctx, name).Result()); tt.field != "" && left <= 0 {
				t.Errorf("the key has no expiry: %v", left)
			}
		})
	}
}

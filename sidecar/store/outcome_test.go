package store

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Each answer of Redis gets the sentence that names what is missing, and whose.
func TestAnswersNameWhatIsMissing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		server []string        // arguments
		before func(s *server) // what is in Redis
		want   []string
	}{
		{"HDEL is renamed", []string{"--rename-command", "HDEL", ""}, nil, []string{"does not know a command", "rename-command"}},
		{"INCRBY is renamed", []string{"--rename-command", "INCRBY", ""}, nil, []string{"does not know a command", "rename-command"}},
		{"a counter of another type", nil, func(s *server) {
			must(s.admin().Set(ctx, "redisson_lock_token:{lock}", "x", 0).Result())
		}, []string{"the token counter", "is not a counter"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t, tt.server...)
			if tt.before != nil {
				tt.before(s)
			}
			r := connected(t, s.url())
			text := ""
			for _, op := range []int{1, 2} {
				res := r.one(takeOp("lock", uint64(op)))
				text += res.Msg
				text += r.one(dropOp("lock", uint64(op))).Msg
			}
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("got %q, want %q", text, want)
				}
			}
		})
	}
	at := wire.Server{Address: "redis:1", Keys: wire.NewKeyspace("")}
	for text, want := range map[string]string{
		"NOPERM User limited has no permissions to run the 'evalsha' command":             "a command that the lock",
		"NOPERM No permissions to access a key":                                           "let its ACL have the keys",
		"NOPERM this user has no permissions to access one of the keys used as arguments": "let its ACL have the keys",
	} {
		if got := at.Answered(redisop.KindLock, "lock", text); !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
	if got := at.Answered(redisop.KindPermits, "api", "NOPERM No permissions to access a key"); got !=
		`Redis at redis:1 does not permit this user the semaphore "api"; let its ACL have the key "api" and the keys locksidecar_* (NOPERM No permissions to access a key)` {
		t.Error(got)
	}
}

package sidecar_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/settings"
)

// A name is refused for the key that it becomes, and only for that.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
func TestReservedNamesOfAKeyPrefixAreRefused(t *testing.T) {
	c := greeted(t, start(t, func(c *sidecar.Config) { c.KeyPrefix = "redisson_" }))
	c.hold("victim")
	c.refused(c.acquire("lock_token:{redisson_victim}", 0), protocol.Denied, "begin with redisson_lock_, and such keys are reserved")
	c.refused(c.acquire("unlock_latch:{redisson_victim}:1", 0), protocol.Denied, "reserved")
	c.hold("redisson_lock_token:{redisson_victim}") // is not its counter

	c = greeted(t, start(t, func(c *sidecar.Config) { c.KeyPrefix = "app1:" }))
	c.hold("victim")
	c.hold("redisson_lock_token:{victim}")
	c.hold("redisson_lock_token:{app1:victim}")
}

// The longest name has room beside the longest prefix: a client, and the state, see the
// name alone.
func TestLongestNameWithTheLongestKeyPrefix(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.KeyPrefix = strings.Repeat("p", 128) })
	name := strings.Repeat("n", protocol.MaxName)
	a, first := h.hello(true, "")
	held := a.hold(name)
	h.restart()
	a = h.resumed(first.Ticket)
	if lost := a.claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
	if row := a.row(name); row == nil || row.Name != name || row.Hold != held.Hold {
		t.Errorf("the lock: %+v", row)
	}
}

// With another prefix, a successor would renew and release keys that its predecessor never
// had. It begins with a new uuid, and says why; so does the next one with the old prefix.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestStateOfAnotherKeyPrefixIsNotTakenOver(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.KeyPrefix = "app1:" })
	options, err := redis.ParseURL(h.cfg.Redis)
	if err != nil {
		t.Fatal(err)
	}
	admin := redis.NewClient(options)
	t.Cleanup(func() { admin.Close() })
	field := func(key string) string {
		t.Helper()
		fields, err := admin.HKeys(t.Context(), key).Result()
		if err != nil || len(fields) > 1 {
			t.Fatalf("%s has %q, %v", key, fields, err)
		}
		return strings.Join(fields, "")
	}
	a, first := h.hello(true, "")
	a.hold("x")
	old := field("app1:x")

	h.stop()
	var log strings.Builder
	h.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.cfg.KeyPrefix = "app2:"
	h.start()
	b, second := h.hello(true, first.Ticket)
	if second.Resumed || second.Sidecar == first.Sidecar {
		t.Errorf("with another prefix, the session of %+v was resumed: %+v", first, second)
	}
	b.hold("x")
	if has := field("app2:x"); has == "" || strings.HasPrefix(has, strings.Split(old, ":")[0]) {
		t.Errorf("the new key has %q after %q", has, old)
	}
	if has := field("app1:x"); has != old {
		t.Errorf("the old key has %q, not %q: its lease has not ended", has, old)
	}
	h.stop()
	if text := log.String(); !strings.Contains(text, `the key prefix was \"app1:\" when the state was written, and is \"app2:\" now`) {
		t.Errorf("the log does not say why: %s", text)
	}

	h.cfg.KeyPrefix = "app1:"
	h.start()
	if c, m := h.hello(true, first.Ticket); m.Resumed || m.Sidecar == first.Sidecar {
		t.Errorf("back at the first prefix, its session was resumed: %+v", m)
	} else {
		c.refused(c.try("x"), protocol.Timeout, "not on this host")
	}
}

// A prefix that is refused costs nothing: the state is taken over by the next sidecar with
// a good one.
func TestRefusedKeyPrefixLeavesTheStateAlone(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.KeyPrefix = "app1:" })
	a, first := h.hello(true, "")
	held := a.hold("x")
	h.stop()
	wrong := h.cfg
	wrong.KeyPrefix = "app1{"
	_, err := sidecar.Listen(wrong)
	var setting *settings.Error
	if !errors.As(err, &setting) || !strings.Contains(err.Error(), "outside of a hash tag") {
		t.Errorf("Listen: %v", err)
	}
	if err := wrong.Check(); !errors.As(err, &setting) {
		t.Errorf("Check: %v", err)
	}
	h.start()
	if lost := h.resumed(first.Ticket).claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
}

// What an operator compares between hosts names the prefix, too.
func TestRedisServerNamesTheKeyPrefix(t *testing.T) {
	for prefix, named := range map[string]bool{"": false, "app1:": true} {
		srv, err := sidecar.Listen(sidecar.Config{
			Socket: t.TempDir() + "/s", Redis: "redis://127.0.0.1:1", KeyPrefix: prefix, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if text := srv.RedisServer(); strings.HasSuffix(text, `, key prefix "app1:"`) != named || !strings.HasPrefix(text, "127.0.0.1:1/0") {
			t.Errorf("prefix %q: %q", prefix, text)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := srv.Serve(ctx); err != nil {
			t.Error(err)
		}
	}
}

package store

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The danger: a slot that Redis computes in another way. Every operation of the lock would go to the
// wrong node first.
func TestSlotOfIsThatOfRedis(t *testing.T) {
	s := startRedis(t, "--cluster-enabled", "yes")
	a := s.admin()
	keys := []string{
		"", "a", "123456789", "{}", "{", "}", "a{b", "a{}b", "a{}{b}", "{{x}}", "{x}", "a{x}b", "a{x}b{y}", "}{x}", "{x", "x}", "{a}{b", "a}b{c}", "\x00\xff{\x80}é",
	}
	r := harness.Random(t)
	for range 3000 {
		key := make([]byte, r.IntN(24))
		for i := range key {
			if key[i] = byte(r.IntN(256)); r.IntN(3) == 0 {
				key[i] = "{}ab"[r.IntN(4)]
			}
		}
		keys = append(keys, string(key))
	}
	pipe := a.Pipeline()
	var answers []*redis.IntCmd
	for _, key := range keys {
		answers = append(answers, pipe.ClusterKeySlot(ctx, key))
	}
	must(pipe.Exec(ctx))
	for i, key := range keys {
		if got, want := int64(wire.SlotOf(key)), answers[i].Val(); got != want {
			t.Errorf("slot %d of %q, Redis has %d", got, key, want)
		}
	}
	if slot := wire.SlotOf("123456789"); slot != 12739 {
		t.Errorf("slot %d of the key in the specification of Redis Cluster", slot)
	}
}

// All keys and the channel of a lock are in one slot, or the name is refused with a sentence.
func TestKeysOfALockAreInOneSlot(t *testing.T) {
	r := harness.Random(t)
	refused := 0
	for _, prefix := range []string{"", "app1:", "{app1}:"} {
		k := wire.NewKeyspace(prefix)
		names := []string{"a", "größe 1", "{a}", "a{b}c", "{a}{b", "a{b", "a{}b", "{", "{}", "}a{b}", "a}b"}
		for range 2000 {
			name := make([]byte, 1+r.IntN(8))
			for i := range name {
				name[i] = "{}abc:"[r.IntN(6)]
			}
			names = append(names, string(name))
		}
		for _, name := range names {
			why := k.Splits(name)
			if why != "" {
				refused++
				if !strings.ContainsAny(name, "{}") || !strings.Contains(why, "hash tag") || prefix == "{app1}:" {
					t.Errorf("prefix %q: the name %q is refused: %s", prefix, name, why)
				}
				continue
			}
			slot := k.SlotOf(name)
			for _, key := range []string{k.Key(name), k.Counter(name), k.Channel(name), k.Queue(name), k.Ours(wire.SignsPrefix, name), k.Ours(wire.HostPrefix, name)} {
				if wire.SlotOf(key) != slot {
					t.Errorf("prefix %q: %q has slot %d, and the lock %q slot %d", prefix, key, wire.SlotOf(key), name, slot)
				}
			}
		}
	}
	for name, want := range map[string]bool{"a{b": true, "a{}b": true, "{": true, "{a": true, "a{b}c": false, "a": false, "{{x}}": false, "a}b": true} {
		k := wire.NewKeyspace("")
		if got := k.Splits(name) != ""; got != want {
			t.Errorf("the keys of %q are in two slots: %v, want %v", name, got, want)
		}
	}
	if refused == 0 {
		t.Error("no name was refused")
	}
}

package store

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A flood is counted, and reaches no lock.
func TestFloodOfIgnoredMessagesIsCounted(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url(), func(c *Config) { c.KeyPrefix = "app1:" })
	texts := []string{"x", "0", "recall app2:a", "transfer 1", "recall app1:"}
	for range 400 {
		pipe := a.Pipeline()
		for _, text := range texts {
			pipe.Publish(ctx, wire.OwnChannel(ourUUID), text)
		}
		must(pipe.Exec(ctx))
	}
	r.one(takeOp("a", 1)) // its result comes after the messages
	if n := r.IgnoredMessages(); n != uint64(400*len(texts)) {
		t.Errorf("%d messages were ignored, want %d", n, 400*len(texts))
	}
	if len(r.messages) != 0 {
		t.Errorf("%d messages reached locks", len(r.messages))
	}
}

// The kind and the channel of a message cost no memory: only its text does.
func TestMessageCostsOneAllocation(t *testing.T) {
	text := ">3\r\n" + bulk("message") + bulk(wire.OwnChannel(ourUUID)) + bulk(strings.Repeat("x", 40))
	const runs = 100
	r := wire.NewReplies(strings.NewReader(strings.Repeat(text, runs+2)))
	r.Known = [...]string{"message", wire.OwnChannel(ourUUID)}
	if _, err := r.Next(); err != nil { // makes the list
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(runs, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); got > 1 {
		t.Errorf("%v allocations, want 1", got)
	}
}

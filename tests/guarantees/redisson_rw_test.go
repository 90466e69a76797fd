package guarantees

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The script for read/write locks beside programs with Redisson's RReadWriteLock: what a sidecar writes into their HASH, and what
// it publishes.

// rwHost is a host that shares read/write locks with Redisson: the script, as its sidecar runs it.
type rwHost struct {
	*testing.T
	redis *harness.Redis
	enc   wire.Encoder
	num   uint64
}

func newRWHost(t *testing.T, r *harness.Redis, n int) *rwHost {
	return &rwHost{T: t, redis: r, enc: wire.Encoder{Prefix: fmt.Sprintf("%08d-2222-8333-8444-555555555555:", n), Origin: wire.NoOrigin}}
}

// ask has the host keep a lock in one mode and want it in another one.
func (h *rwHost) ask(name string, keep, want redisop.Mode) redisop.Result {
	h.Helper()
	h.num++
	op := redisop.Op{Kind: redisop.Take, Of: redisop.KindReadWrite, Name: name, HoldID: h.num, Count: uint32(keep), LeaseMS: 30_000}
	op.Asked = redisop.Asked{Want: uint16(want), Reserve: 1}
	if keep == redisop.NoMode && want == redisop.NoMode {
		op.Kind = redisop.Drop
	}
	command, err := wire.NewReplies(strings.NewReader(string(h.enc.AppendRun(nil, wire.Run{Script: wire.ReadWrite, ByText: true}, 0, 0, []redisop.Op{op})))).Next()
	if err != nil {
		h.Fatal(err)
	}
	words := make([]any, len(command.List))
	for i, word := range command.List {
		words[i] = word.Text
	}
	statuses, err := h.redis.Do(h.Context(), words...).Slice()
	if err != nil {
		h.Fatal(err)
	}
	r := redisop.Result{Kind: op.Kind, Name: name}
	if refusal, err := wire.DecodeReadWrite(replyOf(statuses[0]), &op, &r); err != nil || refusal != "" {
		h.Fatal(refusal, err)
	}
	return r
}

func (h *rwHost) drop(name string) redisop.Result { return h.ask(name, redisop.NoMode, redisop.NoMode) }

func (h *rwHost) must(name string, mode redisop.Mode) {
	h.Helper()
	if r := h.ask(name, redisop.NoMode, mode); r.Outcome != redisop.Done || r.Permits != uint32(mode) {
		h.Fatalf("%s in mode %d: %+v", name, mode, r)
	}
}

// replyOf is what go-redis returned, as the store has it.
func replyOf(answer any) wire.Reply {
	switch v := answer.(type) {
	case int64:
		return wire.Reply{Kind: ':', Num: v}
	case string:
		return wire.Reply{Kind: '$', Text: v}
	case []any:
		r := wire.Reply{Kind: '*'}
		for _, item := range v {
			r.List = append(r.List, replyOf(item))
		}
		return r
	}
	return wire.Reply{}
}

const (
	shared    = redisop.SharedMode
	exclusive = redisop.ExclusiveMode
)

// life returns the key that shows Redisson that hosts share a lock.
func life(name string) string { return new(wire.Keyspace).Life(name) }

// awaitRedissonWaiters waits until so many programs have subscribed to the channel of a read/write lock.
func awaitRedissonWaiters(t *testing.T, r *harness.Redis, name string, want int64) {
	t.Helper()
	channel := "redisson_rwlock:{" + name + "}"
	if strings.Contains(name, "{") {
		channel = "redisson_rwlock:" + name
	}
	harness.Eventually(t, fmt.Sprintf("%d clients wait for %s", want, name), func() bool {
		return r.PubSubNumSub(t.Context(), channel).Val()[channel] == want
	})
}

// Names with and without a brace, whose keys are made in different ways.
var rwNames = []string{"catalog", "{shop}:catalog"}

func TestRedissonAndHostsShareAReadLock(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, name := range rwNames {
		t.Run(name, func(t *testing.T) {
			program, writer := harness.StartRedisson(t, r), harness.StartRedisson(t, r)
			read := harness.Command{Do: "lock", Object: "read", Name: name, As: "read"}
			write := harness.Command{Object: "write", Name: name, As: "write"}
			a, b := newRWHost(t, r, 1), newRWHost(t, r, 2)

			a.must(name, shared)
			program.Must(read)
			mustBeHeld(t, writer, write)
			b.must(name, shared)
			before := r.Fields(name)
			program.Must(harness.Command{Do: "unlock", Object: "read", Name: name, As: "read"})
			after := r.Fields(name)
			if len(after) != len(before)-1 || after["mode"] != "read" || r.PTTL(t.Context(), life(name)).Val() < 30*time.Second {
				t.Fatalf("the last reader of Redisson left %v, of %v", after, before)
			}
			mustBeHeld(t, writer, write)

			program.Must(read)
			for _, h := range []*rwHost{a, b} {
				if got := h.drop(name); got.Outcome != redisop.Done {
					t.Fatalf("%+v", got)
				}
			}
			if left := r.Fields(name); len(left) != 2 || r.Exists(t.Context(), life(name)).Val() != 0 {
				t.Errorf("hosts left %v", left)
			}
			if got := a.ask(name, 0, exclusive); got.Outcome != redisop.HeldByOther {
				t.Errorf("a host writes while a program reads: %+v", got)
			}
			mustBeHeld(t, writer, write)
			program.Must(harness.Command{Do: "unlock", Object: "read", Name: name, As: "read"})
			a.must(name, exclusive)
			mustBeHeld(t, writer, write)
			mustBeHeld(t, program, harness.Command{Object: "read", Name: name, As: "read"})
			a.drop(name)
			mustBeFree(t, writer, write)
		})
	}
}

func TestHostsAreRefusedWhileRedissonWrites(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, name := range rwNames {
		t.Run(name, func(t *testing.T) {
			program, h := harness.StartRedisson(t, r), newRWHost(t, r, 1)
			write := harness.Command{Do: "lock", Object: "write", Name: name, As: "write"}
			program.Must(write)
			before := r.Fields(name)
			for _, mode := range []redisop.Mode{shared, exclusive} {
				if got := h.ask(name, 0, mode); got.Outcome != redisop.HeldByOther || before[got.Field] == "" || got.TTLMS <= 0 {
					t.Errorf("mode %d: %+v", mode, got)
				}
			}
			if after := r.Fields(name); !maps.Equal(after, before) {
				t.Errorf("it became %v", after)
			}
			write.Do = "unlock"
			program.Must(write)
			h.must(name, shared)
		})
	}
}

// Programs wait: what a host releases, or lowers, wakes them.
func TestHostsWakeRedisson(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, name := range rwNames {
		t.Run(name, func(t *testing.T) {
			a, b := newRWHost(t, r, 1), newRWHost(t, r, 2)
			one, two := harness.StartRedisson(t, r), harness.StartRedisson(t, r)
			wait := func(w *harness.Worker, object string) <-chan harness.Answer {
				return w.Send(harness.Command{Do: "lock", Object: object, Name: name, As: object, WaitMS: -1})
			}
			granted := func(w *harness.Worker, from <-chan harness.Answer, object string) {
				t.Helper()
				if got := w.Await(from); got.Err != "" {
					t.Fatalf("%+v", got)
				}
				w.Must(harness.Command{Do: "unlock", Object: object, Name: name, As: object})
			}

			a.must(name, shared)
			b.must(name, shared)
			writes := wait(one, "write")
			awaitRedissonWaiters(t, r, name, 1)
			a.drop(name)
			b.drop(name) // the last one
			granted(one, writes, "write")

			for what, release := range map[string]func(){
				"a release":   func() { a.drop(name) },
				"a downgrade": func() { a.ask(name, shared, redisop.NoMode) },
			} {
				a.must(name, exclusive)
				first, second := wait(one, "read"), wait(two, "read")
				awaitRedissonWaiters(t, r, name, 2)
				release()
				granted(one, first, "read")
				granted(two, second, "read")
				if got := r.Fields(name); (len(got) == 0) != (what == "a release") {
					t.Errorf("%s left %v", what, got)
				}
				a.drop(name)
			}
		})
	}
}

// A program deletes the lock that hosts share. No host writes until their leases end; a reader joins at once.
func TestNoHostWritesIntoADeletedShare(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, name := range rwNames {
		a, b, c := newRWHost(t, r, 1), newRWHost(t, r, 2), newRWHost(t, r, 3)
		a.must(name, shared)
		r.MustDo("DEL", name)
		if got := b.ask(name, 0, exclusive); got.Outcome != redisop.HeldByOther || got.Permits != 0 || got.TTLMS < 30_000 {
			t.Errorf("%+v", got)
		}
		b.must(name, shared)
		b.drop(name)
		if got := c.ask(name, 0, exclusive); got.Outcome != redisop.HeldByOther || got.TTLMS < 20_000 {
			t.Errorf("after a reader: %+v", got)
		}
	}
}

// A host has died: its field does not keep Redisson's last reader from deleting the lock, once its lease has ended.
func TestADeadHostKeepsNoProgramWaiting(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	for _, name := range rwNames {
		a, program := newRWHost(t, r, 1), harness.StartRedisson(t, r)
		a.must(name, shared)
		read := harness.Command{Do: "lock", Object: "read", Name: name, As: "read"}
		program.Must(read)
		r.MustDo("DEL", life(name)) // as if it had expired
		read.Do = "unlock"
		program.Must(read)
		if left := r.Fields(name); len(left) != 0 {
			t.Errorf("%v", left)
		}
	}
}

package store

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

var ctx = context.Background()

// Each case tells what stands in Redis, what is asked, and what stands there
// afterwards.
func TestScripts(t *testing.T) {
	const (
		done, other, missing, notALock = redisop.Done, redisop.HeldByOther, redisop.KeyMissing, redisop.NotALock

		name    = "invoice:42"
		aString = "a key of type string, which is not a lock"
	)
	ours := func(num uint64) map[string]string { return map[string]string{field(ourUUID, num): "1"} }
	redisson := map[string]string{otherUUID + ":77": "2"}
	readers := map[string]string{"mode": "read", otherUUID + ":5": "1"}
	crowd := map[string]string{"a": "1", "b": "2", "c": "3"}
	take := func(num uint64) redisop.Op { return takeOp(name, num) }
	again := take(7)
	again.Count = 3
	held := take(7)
	held.Flags |= redisop.RequireExisting
	noToken := take(7)
	noToken.Reserve = 0
	keep := func(num uint64) redisop.Op { return renewOp(name, num) }
	twice := keep(7)
	twice.Count = 2
	check := func(num uint64) redisop.Op { return checkOp(name, num) }
	drop := func(num uint64) redisop.Op { return dropOp(name, num) }
	big := uint64(1)<<53 - 1

	tests := []struct {
		says      string
		hash      map[string]string // before; nil: no key
		value     string            // before: a string instead of a hash
		op        redisop.Op
		want      redisop.Outcome
		field     string            // of Other
		after     map[string]string // nil: as before
		gone      bool
		published bool // the release is published, which counts the subscribers
		counted   bool // who listens is counted
	}{
		{says: "take of a free lock writes our field", op: take(7), want: done, after: ours(7)},
		{counted: true, says: "take of our own hold again changes nothing", hash: ours(7), op: take(7), want: done},
		{counted: true, says: "take sets the entries, it does not add them", hash: ours(7), op: again, want: done, after: map[string]string{field(ourUUID, 7): "3"}},
		{counted: true, says: "take replaces an earlier hold of ours", hash: ours(6), op: take(7), want: done, after: ours(7)},
		{counted: true, says: "take compares hold numbers as numbers: 10 is later than 9", hash: ours(9), op: take(10), want: done, after: ours(10)},
		{counted: true, says: "take compares the largest hold numbers exactly", hash: ours(big), op: take(big - 1), want: other, field: field(ourUUID, big)},
		{counted: true, says: "take never replaces a later hold of ours", hash: ours(8), op: take(7), want: other, field: field(ourUUID, 8)},
		{counted: true, says: "take leaves somebody else's lock alone", hash: redisson, op: take(7), want: other, field: otherUUID + ":77"},
		{counted: true, says: "take does not mistake a longer field for a hold number", hash: map[string]string{field(ourUUID, 5) + ":write": "1"}, op: take(7), want: other, field: field(ourUUID, 5) + ":write"},
		{counted: true, says: "take does not mistake a longer uuid for ours", hash: map[string]string{"x" + field(ourUUID, 5): "1"}, op: take(7), want: other, field: "x" + field(ourUUID, 5)},
		{counted: true, says: "take recognises a read-write lock", hash: readers, op: take(7), want: other, field: "a read-write lock in mode read"},
		{says: "take leaves any other hash alone", hash: crowd, op: take(7), want: notALock, field: "a hash with 3 fields, which is not a lock"},
		{says: "take leaves a hash alone whose field is no owner", hash: map[string]string{"a": "1"}, op: take(7), want: notALock, field: "a hash with 1 field, which is not a lock"},
		{says: "take leaves another hash around our field alone", hash: map[string]string{field(ourUUID, 7): "1", "a": "1"}, op: held, want: notALock, field: "a hash with 2 fields, which is not a lock"},
		{counted: true, says: "take leaves the lock of a transaction alone", hash: map[string]string{otherUUID + ":7:f00d": "1"}, op: take(7), want: other, field: otherUUID + ":7:f00d"},
		{counted: true, says: "take leaves the lock of a negative thread alone", hash: map[string]string{otherUUID + ":-7": "1"}, op: take(7), want: other, field: otherUUID + ":-7"},
		{counted: true, says: "take leaves the lock of a program with another kind of id alone", hash: map[string]string{"worker@host:7": "1"}, op: take(7), want: other, field: "worker@host:7"},
		{counted: true, says: "take leaves what is left of a read-write lock alone", hash: map[string]string{"mode": "read"}, op: take(7), want: other, field: "a read-write lock in mode read"},
		{says: "take leaves a string alone", value: "x", op: take(7), want: notALock, field: aString},
		{says: "take of a held lock leaves a string alone", value: "x", op: held, want: notALock, field: aString},
		{counted: true, says: "take of a held lock moves it to the later hold", hash: ours(6), op: held, want: done, after: ours(7)},
		{says: "take of a held lock does not take a free one", op: held, want: missing},
		{counted: true, says: "take of a held lock leaves somebody else's alone", hash: redisson, op: held, want: other, field: otherUUID + ":77"},
		{counted: true, says: "take without tokens draws none", op: noToken, want: done, after: ours(7)},

		{says: "keep renews", hash: ours(7), op: keep(7), want: done},
		{says: "keep sets the entries", hash: ours(7), op: twice, want: done, after: map[string]string{field(ourUUID, 7): "2"}},
		{says: "keep moves the lock to the later hold", hash: ours(6), op: keep(7), want: done, after: ours(7)},
		{says: "keep never replaces a later hold", hash: ours(8), op: keep(7), want: other, field: field(ourUUID, 8)},
		{says: "keep of a lost lock finds nothing and makes nothing", op: keep(7), want: missing},
		{says: "keep of a stolen lock leaves the thief alone", hash: redisson, op: keep(7), want: other, field: otherUUID + ":77"},
		{says: "keep recognises a read-write lock", hash: readers, op: keep(7), want: other, field: "a read-write lock in mode read"},
		{says: "keep leaves any other hash alone", hash: crowd, op: keep(7), want: other, field: "a hash with 3 fields, which is not a lock"},
		{says: "keep leaves a string alone", value: "x", op: keep(7), want: other, field: aString},

		{says: "check of our own hold changes nothing", hash: ours(7), op: check(7), want: done},
		{says: "check finds an earlier hold of ours, and changes nothing", hash: ours(6), op: check(7), want: redisop.Differs},
		{says: "check finds other entries, and changes nothing", hash: map[string]string{field(ourUUID, 7): "3"}, op: check(7), want: redisop.Differs},
		{says: "check finds a later hold of ours", hash: ours(8), op: check(7), want: other, field: field(ourUUID, 8)},
		{says: "check finds a lock that is gone", op: check(7), want: missing},
		{says: "check finds a thief", hash: redisson, op: check(7), want: other, field: otherUUID + ":77"},
		{says: "check finds a read-write lock", hash: readers, op: check(7), want: other, field: "a read-write lock in mode read"},
		{says: "check takes its own field among others for another structure", hash: map[string]string{field(ourUUID, 7): "1", "a": "1"}, op: check(7), want: other, field: "a hash with 2 fields, which is not a lock"},
		{says: "check finds a string", value: "x", op: check(7), want: other, field: aString},

		{says: "drop deletes and publishes", hash: ours(7), op: drop(7), want: done, gone: true, published: true},
		{says: "drop deletes an earlier hold", hash: ours(6), op: drop(7), want: done, gone: true, published: true},
		{says: "drop leaves a later hold and is done", hash: ours(8), op: drop(7), want: done},
		{says: "drop of a lock that has expired wakes its waiters", op: drop(7), want: done, gone: true, published: true},
		{says: "drop leaves somebody else's lock and is done", hash: redisson, op: drop(7), want: done},
		{says: "drop leaves a read-write lock", hash: readers, op: drop(7), want: done},
		{says: "drop takes our field out of a hash that others built around it", hash: map[string]string{field(ourUUID, 7): "1", "mode": "read", "a": "1"},
			op: drop(7), want: done, after: map[string]string{"mode": "read", "a": "1"}, published: true},
		{says: "drop leaves a string alone", value: "x", op: drop(7), want: notALock, field: aString},
	}
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		listen := b.admin.Subscribe(ctx, "redisson_lock__channel:{"+name+"}")
		t.Cleanup(func() { listen.Close() })
		if _, err := listen.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		for _, tt := range tests {
			t.Run(tt.says, func(t *testing.T) {
				r.t = t
				b.admin.FlushAll(ctx)
				before := tt.hash
				if tt.hash != nil {
					b.admin.HSet(ctx, name, tt.hash)
					b.admin.PExpire(ctx, name, time.Minute)
				}
				if tt.value != "" {
					b.admin.Set(ctx, name, tt.value, 0)
				}

				tt.op.Set(redisop.CountListeners, tt.op.Kind == redisop.Take && tt.counted)
				res := r.one(tt.op)

				if res.Outcome != tt.want || res.Field != tt.field {
					t.Fatalf("got %+v, want outcome %d field %q", res, tt.want, tt.field)
				}
				if res.Sent == 0 {
					t.Error("no send time")
				}
				switch {
				case tt.value != "":
					if got := must(b.admin.Get(ctx, name).Result()); got != tt.value {
						t.Errorf("the string is %q now", got)
					}
					if res.Outcome != other && (!strings.Contains(res.Msg, name) || !strings.Contains(res.Msg, "not a lock")) {
						t.Errorf("the message does not help: %q", res.Msg)
					}
					if ttl := must(b.admin.PTTL(ctx, name).Result()); ttl != -1 {
						t.Errorf("the string expires in %v now", ttl)
					}
					return
				case tt.gone:
					before = nil
				case tt.after != nil:
					before = tt.after
				}
				if got := must(b.admin.HGetAll(ctx, name).Result()); !maps.Equal(got, before) {
					t.Errorf("Redis has %v, want %v", got, before)
				}
				ttl := must(b.admin.PTTL(ctx, name).Result())
				switch {
				case res.Outcome == other:
					if res.TTLMS < 30_001 || res.TTLMS > 60_000 || ttl < 30*time.Second {
						t.Errorf("TTL %d in the result and %v in Redis, want the minute of the other", res.TTLMS, ttl)
					}
				case (res.Outcome == done || res.Outcome == redisop.Differs) && tt.op.Kind == redisop.Check:
					if ttl <= 30*time.Second {
						t.Errorf("TTL in Redis %v, want the minute it had", ttl)
					}
				case res.Outcome == done && tt.op.Kind != redisop.Drop:
					if ttl <= 0 || ttl > 30*time.Second {
						t.Errorf("TTL in Redis %v, want the lease", ttl)
					}
				}
				var listeners redisop.Listeners
				if tt.counted || tt.published {
					listeners = redisop.CountedListeners(1)
				}
				if res.Outcome <= other && res.Listeners != listeners {
					t.Errorf("%+v subscribers, want %+v", res.Listeners, listeners)
				}
				if tt.op.Kind == redisop.Take && res.Outcome == done {
					if (res.Token != 0) != (tt.op.Reserve != 0) {
						t.Errorf("token %d for %d reserved", res.Token, tt.op.Reserve)
					}
				}
				// A release that was published arrives before this marker.
				b.admin.Publish(ctx, "redisson_lock__channel:{"+name+"}", "marker")
				msg := must(listen.ReceiveMessage(ctx))
				if received := msg.Payload == "0"; received != tt.published {
					t.Errorf("received %q, want a release: %v", msg.Payload, tt.published)
				}
				if tt.published {
					must(listen.ReceiveMessage(ctx))
				}
			})
		}
	})
}

// A run of takes and drops: every one has its own fate, and they are in order.
func TestTradeJudgesEachAlone(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "theirs", field(otherUUID, 1), "1")
		b.admin.Set(ctx, "string", "x", 0)
		b.admin.Set(ctx, counterOf("countless"), "seventeen", 0)
		b.admin.HSet(ctx, "back", field(ourUUID, 3), "1")
		b.admin.Set(ctx, counterOf("back"), 1<<51, 0)
		b.admin.HSet(ctx, "stolen", field(otherUUID, 1), "1")
		b.admin.HSet(ctx, "later", field(ourUUID, 9), "1")
		b.admin.HSet(ctx, "passed", field(ourUUID, 3), "1")
		move := func(name string) redisop.Op {
			op := takeOp(name, 5)
			op.Flags, op.Reserve = redisop.RequireExisting, 64
			return op
		}
		behind := func(op redisop.Op) redisop.Op {
			op.Flags |= redisop.AfterPendingDrop
			return op
		}
		want := []struct {
			op      redisop.Op
			outcome redisop.Outcome
			left    string // the field in Redis afterwards
		}{
			{takeOp("free", 1), redisop.Done, field(ourUUID, 1)},
			{takeOp("theirs", 1), redisop.HeldByOther, field(otherUUID, 1)},
			{takeOp("string", 1), redisop.NotALock, ""},
			{dropOp("back", 3), redisop.Done, ""},
			{behind(takeOp("back", 4)), redisop.Done, field(ourUUID, 4)},
			{takeOp("countless", 1), redisop.Refused, ""},
			{dropOp("stolen", 3), redisop.Done, field(otherUUID, 1)},
			{behind(takeOp("stolen", 4)), redisop.HeldByOther, field(otherUUID, 1)},
			{dropOp("expired", 3), redisop.Done, ""},
			{behind(takeOp("expired", 4)), redisop.Done, field(ourUUID, 4)},
			{dropOp("later", 8), redisop.Done, field(ourUUID, 9)},
			{move("passed"), redisop.Done, field(ourUUID, 5)},
			{move("gone"), redisop.KeyMissing, ""},
			{dropOp("never", 1), redisop.Done, ""},
			{takeOp("last", 1), redisop.Done, field(ourUUID, 1)},
		}
		var ops []redisop.Op
		for _, w := range want {
			ops = append(ops, w.op)
		}
		if _, n := wire.BatchPrefix(ops, nil); n != len(ops) {
			t.Fatalf("%d of %d run together", n, len(ops))
		}
		results := r.ask(ops...)
		for i, w := range want {
			res := results[i]
			if res.Outcome != w.outcome {
				t.Errorf("%s, kind %d: got %+v, want outcome %d", w.op.Name, w.op.Kind, res, w.outcome)
			}
			if taken := w.op.Kind == redisop.Take && w.outcome == redisop.Done; taken == (res.Token == 0) {
				t.Errorf("%s, kind %d: token %d", w.op.Name, w.op.Kind, res.Token)
			} else if taken {
				if got := must(b.admin.Get(ctx, counterOf(w.op.Name)).Uint64()); got != res.Token {
					t.Errorf("%s: token %d, the counter is %d", w.op.Name, res.Token, got)
				}
				if left := must(b.admin.PTTL(ctx, counterOf(w.op.Name)).Result()); left != -1 {
					t.Errorf("%s: the counter expires in %v", w.op.Name, left)
				}
			}
			if w.op.Name == "string" || w.op.Kind == redisop.Drop && w.op.Name != "later" && w.op.Name != "never" {
				continue
			}
			left := must(b.admin.HGetAll(ctx, w.op.Name).Result())
			if _, ok := left[w.left]; ok == (w.left == "") || len(left) > 1 {
				t.Errorf("%s: Redis has %v, want the field %q", w.op.Name, left, w.left)
			}
			if ttl := must(b.admin.PTTL(ctx, w.op.Name).Result()); w.op.Kind == redisop.Take && w.outcome == redisop.Done && (ttl <= 0 || ttl > 30*time.Second) {
				t.Errorf("%s lives for %v", w.op.Name, ttl)
			}
		}
	})
}

// Who listens to a pattern is no waiter.
func TestListenersAreThoseOfTheChannel(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		curious := b.admin.PSubscribe(ctx, "redisson_lock__channel:*")
		t.Cleanup(func() { curious.Close() })
		must(curious.Receive(ctx))
		r.one(takeOp("lock", 1))
		if res := r.one(dropOp("lock", 1)); res.Listeners != redisop.CountedListeners(0) {
			t.Errorf("%+v subscribers, want none", res.Listeners)
		}
		if msg := must(curious.ReceiveMessage(ctx)); msg.Payload != "0" {
			t.Errorf("received %q", msg.Payload)
		}
		waiter := b.admin.Subscribe(ctx, channelOf("lock"))
		t.Cleanup(func() { waiter.Close() })
		must(waiter.Receive(ctx))
		r.one(takeOp("lock", 2))
		if res := r.one(dropOp("lock", 2)); res.Listeners != redisop.CountedListeners(1) {
			t.Errorf("%+v subscribers, want the one that waits", res.Listeners)
		}
	})
}

// A lock that is dropped and taken again in one run: each of the two finds what the key has become.
func TestPairLeavesOtherStructuresAlone(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		for _, tt := range []struct {
			says    string
			hash    map[string]string
			want    redisop.Outcome // of the take
			after   map[string]string
			noToken bool
		}{
			{"as it was left", map[string]string{field(ourUUID, 1): "1"}, redisop.Done, map[string]string{field(ourUUID, 2): "1"}, false},
			{"another field beside ours", map[string]string{field(ourUUID, 1): "1", "mode": "read"}, redisop.HeldByOther, map[string]string{"mode": "read"}, true},
			{"a program's lock", map[string]string{otherUUID + ":77": "1"}, redisop.HeldByOther, map[string]string{otherUUID + ":77": "1"}, true},
			{"gone", nil, redisop.Done, map[string]string{field(ourUUID, 2): "1"}, false},
		} {
			t.Run(tt.says, func(t *testing.T) {
				b.admin.FlushAll(ctx)
				r := connected(t, b.url)
				if tt.hash != nil {
					b.admin.HSet(ctx, "lock", tt.hash)
				}
				listen := b.admin.Subscribe(ctx, channelOf("lock"))
				defer listen.Close()
				must(listen.Receive(ctx))
				again := takeOp("lock", 2)
				again.Flags |= redisop.AfterPendingDrop
				res := r.ask(dropOp("lock", 1), again)
				if res[0].Outcome != redisop.Done || res[1].Outcome != tt.want || (res[1].Token == 0) != tt.noToken {
					t.Errorf("got %+v", res)
				}
				if got := must(b.admin.HGetAll(ctx, "lock").Result()); !maps.Equal(got, tt.after) {
					t.Errorf("Redis has %v, want %v", got, tt.after)
				}
				if tt.want == redisop.Done {
					if ttl := must(b.admin.PTTL(ctx, "lock").Result()); ttl <= 0 || ttl > 30*time.Second {
						t.Errorf("the key lives for %v", ttl)
					}
				}
				released := tt.says != "a program's lock"
				b.admin.Publish(ctx, channelOf("lock"), "marker")
				if msg := must(listen.ReceiveMessage(ctx)); (msg.Payload == "0") != released {
					t.Errorf("received %q, want the release: %v", msg.Payload, released)
				}
			})
		}
	})
}

// A counter that is behind the floor is lifted, however little it is behind.
func TestPairLiftsACounterThatIsOneBelowTheFloor(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "lock", field(ourUUID, 1), "1")
		b.admin.Set(ctx, counterOf("lock"), r.id.Floor-1, 0)
		before := uint64(must(b.admin.Time(ctx).Result()).UnixMicro())
		again := takeOp("lock", 2)
		again.Flags |= redisop.AfterPendingDrop
		if res := r.ask(dropOp("lock", 1), again)[1]; res.Outcome != redisop.Done || res.Token <= before {
			t.Errorf("got %+v, the time was %d", res, before)
		}
	})
}

// While the clock is asked for, each counter is lifted to it, and none is set back: hundreds of tokens may
// have been drawn from one in fewer microseconds, or the clock was set back.
func TestCounterIsLiftedToTheClockAndNeverSetBack(t *testing.T) {
	const ahead = 1 << 52
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		r.one(takeOp("another", 1)) // the connection is in use
		b.admin.Set(ctx, counterOf("behind"), r.id.Floor+1, 0)
		b.admin.Set(ctx, counterOf("ahead"), ahead, 0)
		before := uint64(must(b.admin.Time(ctx).Result()).UnixMicro())
		if res := r.oneLifted(takeOp("behind", 2)); res.Outcome != redisop.Done || res.Token <= before {
			t.Errorf("got %+v, the time was %d", res, before)
		}
		if res := r.oneLifted(takeOp("ahead", 3)); res.Outcome != redisop.Done || res.Token != ahead+uint64(takeOp("ahead", 3).Reserve) {
			t.Errorf("got %+v, the counter was %d", res, uint64(ahead))
		}
	})
}

// A drop and a take of one run have each its own result.
func TestPairWithoutPermissionToPexpireDropsTheLock(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.userURL("nopexpire", "~*", "&*", "+@all", "-pexpire"))
	a.HSet(ctx, "lock", field(ourUUID, 1), "1")
	a.Set(ctx, counterOf("lock"), int64(1)<<52, 0)
	listen := a.Subscribe(ctx, channelOf("lock"))
	defer listen.Close()
	must(listen.Receive(ctx))
	again := takeOp("lock", 2)
	again.Flags |= redisop.AfterPendingDrop
	res := r.ask(dropOp("lock", 1), again)
	if res[0].Outcome != redisop.Done || res[0].Listeners != redisop.CountedListeners(1) || res[1].Outcome != redisop.Refused {
		t.Errorf("got %+v", res)
	}
	if left := must(a.HGetAll(ctx, "lock").Result()); len(left) > 0 {
		t.Errorf("the lock is still there: %v", left)
	}
	a.Publish(ctx, channelOf("lock"), "marker")
	if msg := must(listen.ReceiveMessage(ctx)); msg.Payload != "0" {
		t.Errorf("received %q, want the release", msg.Payload)
	}
}

// What another program has written under a lock's name reaches terminals and logs.
// Time goes on during a script in the embedded Redis: a key of which a script knows the number of
// fields may expire before the script reads them. It is then no lock of another kind.
func TestKeyThatExpiresDuringAScriptIsNotTakenForAnotherStructure(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		for fields := range 3 {
			text := wire.OwnershipText + `
				local field, other, is_no_lock = owner(KEYS[1], tonumber(ARGV[2]), '5')
				return {tostring(field), tostring(other), tostring(is_no_lock)}`
			got := must(b.admin.Eval(ctx, text, []string{"gone"}, ourUUID+":", 1+fields).StringSlice())
			if want := []string{"nil", "nil", "nil"}; !slices.Equal(got, want) {
				t.Errorf("%d fields: %q, want %q", 1+fields, got, want)
			}
		}
	})
}

func TestFieldsOfOthersAreMadeReadable(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "lock", "\x1b[2Jevil\r\n\u0085\u2028\xff:1", "1")
		res := r.one(takeOp("lock", 1))
		if want := "\uFFFD[2Jevil\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD:1"; res.Outcome != redisop.HeldByOther || res.Field != want {
			t.Errorf("got %+q, want %+q", res.Field, want)
		}
	})
}

// The counter of Redisson's fenced lock and ours are one: both sides' tokens grow.
func TestTokensAreSharedWithRedissonsFencedLock(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		first := r.one(takeOp("lock", 1)).Token
		theirs := uint64(must(b.admin.Incr(ctx, "redisson_lock_token:{lock}").Result()))
		last := r.one(takeOp("lock", 2)).Token
		if !(first < theirs && theirs < last) {
			t.Errorf("tokens %d, %d, %d do not grow", first, theirs, last)
		}
	})
}

func TestScriptIsTaughtAgainAfterScriptFlush(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		for range 3 {
			must(b.admin.ScriptFlush(ctx).Result())
			// Both scripts unknown, several operations of one, in one batch.
			b.admin.HSet(ctx, "k1", field(ourUUID, 1), "1")
			b.admin.HSet(ctx, "d1", field(ourUUID, 1), "1")
			for _, res := range r.ask(takeOp("a", 1), takeOp("b", 1), renewOp("k1", 1), dropOp("d1", 1), dropOp("d2", 1)) {
				if res.Outcome != redisop.Done {
					t.Errorf("got %+v", res)
				}
			}
		}
	})
}

// A Take or a Drop that comes alone is executed by the head of the script, where that is as this sidecar left it.
func TestLoneTakeAndDropAreLikeOthers(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	const counted = int64(1) << 51 // above the floor
	a.Set(ctx, counterOf("forever"), counted, time.Hour)
	a.Set(ctx, counterOf("week"), counted, time.Hour)
	a.Set(ctx, counterOf("denied"), counted, 0)

	r := connected(t, s.url())
	if res := r.one(takeOp("forever", 1)); res.Outcome != redisop.Done || res.Token != uint64(counted)+1 {
		t.Errorf("%+v", res)
	}
	if left := must(a.PTTL(ctx, counterOf("forever")).Result()); left != -1 {
		t.Errorf("counters do not expire, and this one does in %v", left)
	}
	expiring := connected(t, s.url(), func(c *Config) { c.TokenExpiry = 7 * 24 * time.Hour })
	if res := expiring.one(takeOp("week", 1)); res.Outcome != redisop.Done || res.Token != uint64(counted)+1 {
		t.Errorf("%+v", res)
	}
	if left := must(a.PTTL(ctx, counterOf("week")).Result()); left < 6*24*time.Hour {
		t.Errorf("the counter of a lock that was taken expires in %v", left)
	}
	denied := connected(t, s.userURL("nopexpire", "~*", "&*", "+@all", "-pexpire"))
	if res := denied.one(takeOp("denied", 1)); res.Outcome != redisop.Refused {
		t.Errorf("%+v", res)
	}
	if left := must(a.HGetAll(ctx, "denied").Result()); len(left) > 0 {
		t.Errorf("a lock that never expires is left: %v", left)
	}

	listen := a.Subscribe(ctx, channelOf("forever"))
	defer listen.Close()
	must(listen.Receive(ctx))
	must(a.ConfigResetStat(ctx).Result())
	if res := r.one(dropOp("forever", 1)); res.Outcome != redisop.Done || res.Listeners != redisop.CountedListeners(1) {
		t.Errorf("%+v", res)
	}
	stats := a.Info(ctx, "commandstats").Val()
	for _, command := range []string{"hdel", "publish"} {
		if !strings.Contains(stats, "cmdstat_"+command+":calls=1,") {
			t.Errorf("a Drop executes %s more than once", command)
		}
	}
}

package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// receiver connects a sidecar, and returns what it receives on its channel.
func receiver(t *testing.T, url, uuid string) (*recorder, chan redisop.Message) {
	received := make(chan redisop.Message, 100)
	r := connected(t, url, func(c *Config) {
		c.UUID = uuid
		c.on(Messages, func(e Event) {
			for _, m := range e.Messages {
				received <- m
			}
		})
	})
	return r, received
}

// passTo has a sidecar queue for a lock, which another one passes on to it.
func passTo(t *testing.T, holder, next *recorder, lock string) {
	t.Helper()
	if res := holder.one(takeOp(lock, 1)); res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	wait := takeOp(lock, 1)
	wait.Flags |= redisop.Enqueue
	if res := next.one(wait); res.Ticket != 1 {
		t.Fatalf("%+v", res)
	}
	drop := dropOp(lock, 1)
	drop.LeaseMS = 30_000
	if res := holder.one(drop); !res.Passed {
		t.Fatalf("%+v", res)
	}
}

// A message proves what it says if the server at the other end of the connection made it.
//
// Shows docs/queue.md: Origins.
func TestMessageNamesItsServer(t *testing.T) {
	for _, tt := range []struct {
		name    string
		uuid    string
		denied  string // to the sender
		isKnown bool
	}{
		{"to a sidecar of this version", secondUUID, "", true},
		{"to an older sidecar", otherUUID, "", false},
		{"by a sidecar that may not ask for the run id", secondUUID, "-info", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			backends(t, func(t *testing.T, b backend) {
				url := b.url
				if tt.denied != "" {
					if b.server == nil {
						t.Skip("it has no users")
					}
					must(b.admin.ACLSetUser(ctx, "sender", "on", ">secret", "~*", "&*", "+@all", tt.denied).Result())
					url = "redis://sender:secret@" + b.server.tcp()
				}
				holder := connected(t, url, func(c *Config) { c.on(Messages, func(Event) {}) })
				next, received := receiver(t, b.url, tt.uuid)
				passTo(t, holder, next, "lock")
				m := recv(t, received, "message")
				if m.Kind != redisop.Transferred || m.Ticket != 1 || (m.Conn == redisop.NewConn(1)) != tt.isKnown || (m.Tokens == redisop.PassedTokens) != tt.isKnown {
					t.Errorf("%+v", m)
				}
			})
		})
	}
}

// The danger: the replica that a master has become passes on what its new master publishes.
//
// Shows docs/queue.md: Origins.
func TestMessageOverReplicationProvesNothing(t *testing.T) {
	master, replica := startRedis(t, "--repl-diskless-sync-delay", "0"), startRedis(t)
	_, received := receiver(t, replica.url(), secondUUID) // greeted as a master
	replica.follow(master)
	holder := connected(t, master.url(), func(c *Config) { c.on(Messages, func(Event) {}) })
	if res := holder.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	drop := dropOp("lock", 1)
	drop.LeaseMS = 30_000
	// Its ticket is of the time before.
	master.admin().ZAdd(ctx, "locksidecar_queue:{lock}", redis.Z{Score: float64(time.Now().UnixMicro()), Member: field(secondUUID, 1)})
	if res := holder.one(drop); res.Passed {
		t.Fatalf("%+v", res)
	}
	if m := recv(t, received, "message"); m.Kind != redisop.Transferred || m.Ticket != 1 || m.Conn != (redisop.Conn{}) || m.Tokens != 0 {
		t.Errorf("%+v", m)
	}
}

// The danger: a waiter stays at a former master, whose scripts read what they may not write.
func TestReplicaEndsTheSessionOfAWaiter(t *testing.T) {
	for _, tt := range []struct {
		name string
		op   func(queued *redisop.Result) redisop.Op
	}{
		{"a new ticket", func(*redisop.Result) redisop.Op { return waitOp("free of tickets", 9, 0) }},
		{"a ticket that stands", func(queued *redisop.Result) redisop.Op { return waitOp("lock", 9, queued.Ticket) }},
		{"a ticket that is given up", func(queued *redisop.Result) redisop.Op {
			op := dropOp("lock", 9)
			op.Ticket = queued.Ticket
			return op
		}},
		{"a free lock", func(*redisop.Result) redisop.Op { return takeOp("free", 9) }},
		{"a free lock in order", func(*redisop.Result) redisop.Op {
			op := waitOp("free", 9, 0)
			op.Flags |= redisop.InOrder
			return op
		}},
		{"a lock of its own", func(*redisop.Result) redisop.Op {
			op := takeOp("own", 1)
			op.Kind, op.Reserve = redisop.Renew, 0
			return op
		}},
		{"a release", func(*redisop.Result) redisop.Op { return dropOp("own", 1) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startRedis(t)
			admin := s.admin()
			for _, lock := range []string{"lock", "free of tickets"} {
				admin.HSet(ctx, lock, field(otherUUID, 5), "1")
				admin.PExpire(ctx, lock, time.Minute)
			}
			r := connected(t, s.url())
			queued := r.one(waitOp("lock", 1, 0))
			if queued.Ticket != 1 || r.one(takeOp("own", 1)).Outcome != redisop.Done {
				t.Fatalf("%+v", queued)
			}
			s.becomeReplica()
			if res := r.one(tt.op(&queued)); res.Outcome != redisop.Retryable || !strings.Contains(res.Msg, "read-only replica") {
				t.Errorf("%+v", res)
			}
			if err := r.down(); !strings.Contains(err, "read-only replica") {
				t.Errorf("the connection ended with %v", err)
			}
		})
	}
}

// The danger: one forged message has this host draw tokens that are a year ahead of Redis's clock,
// and with them all hosts.
//
// Shows docs/queue.md: Messages.
func TestForgedTransferRaisesNoFloor(t *testing.T) {
	s := startRedis(t)
	admin := s.admin()
	r, received := receiver(t, s.url(), secondUUID)
	from := wire.OriginOf(wire.InfoFields(admin.Info(ctx, "server").Val())["run_id"], "master")
	if !from.IsKnown {
		t.Fatal("Redis names no run id")
	}
	now := time.Now().UnixMicro()
	for _, tt := range []struct {
		last   int64
		tokens uint16
	}{
		{now + (365 * 24 * time.Hour).Microseconds(), 0},
		{now + time.Hour.Microseconds(), 0},
		{now + 500_000, 32}, // as if it had just been drawn
	} {
		text := fmt.Sprintf("transfer:%v 1 %d 32 30000 0 0 lock", from, tt.last)
		admin.Publish(ctx, sidecarChannel(secondUUID), text)
		if m := recv(t, received, "message"); m.Tokens != tt.tokens || m.Conn != redisop.NewConn(1) {
			t.Errorf("%q: %+v", text, m)
		}
	}
	if res := r.one(takeOp("another", 1)); res.Outcome != redisop.Done || int64(res.Token) > time.Now().UnixMicro()+1_000_000 {
		t.Errorf("the next token of a new counter is %d s ahead: %+v", (int64(res.Token)-now)/1_000_000, res)
	}
}

func TestOriginOf(t *testing.T) {
	for _, tt := range []struct{ runID, role, want string }{
		{"0123abcd9f", "master", "0123abcd"},
		{"0123abcd9f", "", "-"}, // a replica may say neither
		{"0123abcd9f", "slave", "-"},
		{"", "master", "-"},
		{"0123abc", "master", "-"},
		{"not a run id", "master", "-"},
	} {
		if o := wire.OriginOf(tt.runID, tt.role); o.String() != tt.want || o.IsKnown != (tt.want != "-") || o.IsSame(o) != o.IsKnown {
			t.Errorf("run id %q, role %q: %v, want %q", tt.runID, tt.role, o, tt.want)
		}
	}
}

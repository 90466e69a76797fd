package store

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/redis/go-redis/v9"
)

const thirdUUID = "aaaaaaaa-8888-7777-6666-555555555555"

func sidecarChannel(uuid string) string { return "redisson_lock__channel:{locksidecar}:" + uuid }

// waitOp is a Take that waits in the queue.
func waitOp(name string, num, ticket uint64) redisop.Op {
	op := takeOp(name, num)
	op.Flags, op.Ticket = op.Flags|redisop.Enqueue, ticket
	return op
}

// passOp is a Drop that may pass the lock on.
func passOp(name string, num uint64, passedMS uint32) redisop.Op {
	op := dropOp(name, num)
	op.LeaseMS, op.PassedMS = 20_000, passedMS
	return op
}

// queueCase is one thing that scripts do with a queue.
type queueCase struct {
	says      string
	name      string         // of the lock; "": lock
	holder    string         // owner field of the key; "": there is no key
	tickets   map[string]int // before: how many seconds ago each came
	signs     map[string]int // before: how many seconds ago a sidecar asked again
	counter   string         // before: the value of the token counter; "": there is none
	listens   []string       // sidecars that receive messages
	listeners bool           // a program subscribes to the channel of the lock
	ops       []redisop.Op   // one batch; Arrived is how many seconds ago
	want      []string       // outcome of each
	after     string         // owner field of the key
	queue     []string       // members, in order
	messages  []string       // "<uuid>: <text>", with # instead of a token
	freedFor  uint32         // this sidecar is told that the lock is free for so long, ms; 0: it is not
}

// Shows docs/queue.md: A holder that is a foreign client.
func TestQueueInScripts(t *testing.T) {
	const lock, queue = "lock", "locksidecar_queue:{lock}"
	again := func(op redisop.Op) redisop.Op {
		op.Flags |= redisop.AfterPendingDrop
		return op
	}
	inOrder := func(op redisop.Op) redisop.Op {
		op.Flags |= redisop.InOrder
		return op
	}
	arrived := func(op redisop.Op, age uint64) redisop.Op {
		op.Flags, op.Arrived = op.Flags|redisop.InOrder, age
		return op
	}
	leaves := func(op redisop.Op, ticket uint64) redisop.Op {
		op.Ticket = ticket
		return op
	}
	ours := func(num uint64) string { return field(ourUUID, num) }
	other := func(num uint64) string { return field(otherUUID, num) }
	third := func(num uint64) string { return field(thirdUUID, num) }
	many := make(map[string]int)
	for i := range uint64(128) {
		many[third(1000+i)] = 10
	}
	many[other(1)] = 5
	both := []string{otherUUID, thirdUUID}

	for _, tt := range []queueCase{
		{says: "a Take that finds another owner gets a ticket, and recalls the lock",
			holder: other(7), listens: both, ops: []redisop.Op{waitOp(lock, 3, 0)},
			want: []string{"held, 0 listeners, rank 0, ticket 3, recalled"}, after: other(7), queue: []string{ours(3)},
			messages: []string{otherUUID + ": recall lock"}},
		{says: "the second one of a queue recalls, too",
			holder: other(7), tickets: map[string]int{third(1): 5}, listens: both, ops: []redisop.Op{waitOp(lock, 3, 0)},
			want: []string{"held, 0 listeners, rank 1, ticket 3, recalled"}, after: other(7), queue: []string{third(1), ours(3)},
			messages: []string{otherUUID + ": recall lock"}},
		{says: "the third one does not, and does not count the subscribers",
			holder: other(7), tickets: map[string]int{third(1): 5, third(2): 4}, listens: both, ops: []redisop.Op{waitOp(lock, 3, 0)},
			want: []string{"held, listeners uncounted, rank 2, ticket 3, not recalled"}, after: other(7), queue: []string{third(1), third(2), ours(3)}},
		{says: "Redis's clock was set back: a newcomer does not stand before the others",
			holder: other(7), tickets: map[string]int{third(1): -3600}, listens: both, ops: []redisop.Op{waitOp(lock, 3, 0)},
			want: []string{"held, 0 listeners, rank 1, ticket 3, recalled"}, after: other(7), queue: []string{third(1), ours(3)},
			messages: []string{otherUUID + ": recall lock"}},
		{says: "Redis's clock was set back: requests arrive after the tickets",
			holder: ours(3), tickets: map[string]int{third(1): -3600}, ops: []redisop.Op{{Kind: redisop.Arrive, Name: lock}},
			want: []string{"arrived, the first 0 s ago"}, after: ours(3), queue: []string{third(1)}},
		{says: "a Take that asks again keeps its ticket",
			holder: other(7), tickets: map[string]int{ours(2): 9, third(1): 5}, ops: []redisop.Op{waitOp(lock, 3, 2)},
			want: []string{"held, 0 listeners, rank 0, ticket 2, recall missed"}, after: other(7), queue: []string{ours(2), third(1)}},
		{says: "a ticket that is gone is replaced",
			holder: other(7), tickets: map[string]int{third(1): 5}, ops: []redisop.Op{waitOp(lock, 3, 2)},
			want: []string{"held, 0 listeners, rank 1, ticket 3, recall missed"}, after: other(7), queue: []string{third(1), ours(3)}},
		{says: "a try has no ticket, and recalls nothing",
			holder: other(7), listens: both, ops: []redisop.Op{takeOp(lock, 3)},
			want: []string{"held, 0 listeners"}, after: other(7)},
		{says: "a holder that is a foreign client is not reached",
			holder: "redisson:1", ops: []redisop.Op{waitOp(lock, 3, 0)},
			want: []string{"held, 0 listeners, rank 0, ticket 3, recall missed"}, after: "redisson:1", queue: []string{ours(3)}},
		{says: "a Take that succeeds removes its ticket, and says how many wait",
			tickets: map[string]int{ours(2): 9, third(1): 5}, ops: []redisop.Op{waitOp(lock, 3, 2)},
			want: []string{"done, 1 wait, ticket 0"}, after: ours(3), queue: []string{third(1)}},

		{says: "a Drop passes the lock to the first of the queue",
			holder: ours(3), tickets: map[string]int{other(7): 9, third(1): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 12)},
			want: []string{"passed, 1 wait"}, after: other(7), queue: []string{third(1)},
			messages: []string{otherUUID + ": transfer 7 # 32 20000 1 12 lock"}},
		{says: "so does one of a lock that has expired",
			tickets: map[string]int{other(7): 9}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: other(7),
			messages: []string{otherUUID + ": transfer 7 # 32 20000 0 0 lock"}},
		{says: "a Drop of another owner's lock only removes the ticket",
			holder: third(1), tickets: map[string]int{ours(2): 9, other(7): 5}, listens: both, ops: []redisop.Op{leaves(passOp(lock, 3, 0), 2)},
			want: []string{"done"}, after: third(1), queue: []string{other(7)}},
		{says: "if a program has the lock and the first ticket is given up, the next one has to ask",
			holder: "redisson:1", tickets: map[string]int{ours(2): 9, other(7): 5, third(1): 4}, listens: both, ops: []redisop.Op{leaves(passOp(lock, 3, 0), 2)},
			want: []string{"done"}, after: "redisson:1", queue: []string{other(7), third(1)},
			messages: []string{otherUUID + ": free 0 lock"}},
		{says: "so it has if the field is like a sidecar's that does not listen",
			holder: third(1), tickets: map[string]int{ours(2): 9, other(7): 5}, listens: []string{otherUUID}, ops: []redisop.Op{leaves(passOp(lock, 3, 0), 2)},
			want: []string{"done"}, after: third(1), queue: []string{other(7)},
			messages: []string{otherUUID + ": free 0 lock"}},
		{says: "so it has if a program took a lock that has expired",
			holder: "redisson:1", tickets: map[string]int{other(7): 9, third(1): 4}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"done"}, after: "redisson:1", queue: []string{other(7), third(1)},
			messages: []string{otherUUID + ": free 0 lock"}},
		{says: "a ticket after the first does not change who has to ask",
			holder: "redisson:1", tickets: map[string]int{other(7): 9, ours(2): 5, third(1): 4}, listens: both, ops: []redisop.Op{leaves(passOp(lock, 3, 0), 2)},
			want: []string{"done"}, after: "redisson:1", queue: []string{other(7), third(1)}},
		{says: "a sidecar that does not listen is passed over",
			holder: ours(3), tickets: map[string]int{other(7): 9, third(1): 5}, listens: []string{thirdUUID}, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: third(1),
			messages: []string{thirdUUID + ": transfer 1 # 32 20000 0 0 lock"}},
		{says: "a lock for which only such sidecars wait is free",
			holder: ours(3), tickets: map[string]int{other(7): 9, third(1): 5}, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"done"}},
		{says: "an operation looks at 128 tickets",
			holder: ours(3), tickets: many, listens: []string{otherUUID}, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"done"}, queue: []string{other(1)}},
		{says: "a member that is no ticket is removed",
			holder: ours(3), tickets: map[string]int{"x": 9, otherUUID + ":x": 9, "y" + other(7): 9, third(1): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: third(1),
			messages: []string{thirdUUID + ": transfer 1 # 32 20000 0 0 lock"}},
		{says: "a sidecar that has not asked for 15 s has to queue again",
			holder: ours(3), tickets: map[string]int{other(7): 60, third(1): 5}, signs: map[string]int{otherUUID: 30}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: third(1),
			messages: []string{otherUUID + ": requeue lock", thirdUUID + ": transfer 1 # 32 20000 0 0 lock"}},
		{says: "a sidecar that has asked since keeps its turn",
			holder: ours(3), tickets: map[string]int{other(7): 60}, signs: map[string]int{otherUUID: 0}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: other(7),
			messages: []string{otherUUID + ": transfer 7 # 32 20000 0 0 lock"}},
		{says: "a ticket of this sidecar that was given up is not passed the lock",
			holder: ours(3), tickets: map[string]int{ours(2): 9, other(7): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"passed, 0 wait"}, after: other(7),
			messages: []string{otherUUID + ": transfer 7 # 32 20000 0 0 lock"}},
		{says: "a lock that was dropped and is wanted again passes to the next host, and the ticket stands behind",
			holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 30), again(waitOp(lock, 4, 0))},
			want: []string{"passed, 1 wait", "held, 0 listeners, rank 0, ticket 4, not recalled"}, after: other(7), queue: []string{ours(4)},
			messages: []string{otherUUID + ": transfer 7 # 32 20000 1 30 lock"}},
		{says: "a lock that was dropped and is wanted again is not left free for others",
			holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 1000), again(waitOp(lock, 4, 0))},
			want: []string{"passed, 1 wait", "held, 0 listeners, rank 0, ticket 4, not recalled"}, after: other(7), queue: []string{ours(4)},
			messages: []string{otherUUID + ": transfer 7 # 32 20000 1 99 lock"}},

		{says: "after 50 ms a lock that programs wait for is free for a moment",
			holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, listeners: true, ops: []redisop.Op{passOp(lock, 3, 50)},
			want: []string{"paused, 1 listeners"}, queue: []string{other(7)},
			messages: []string{otherUUID + ": free 10 lock"}},
		{says: "one that only sidecars wait for passes on",
			holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 99)},
			want: []string{"passed, 0 wait"}, after: other(7),
			messages: []string{otherUUID + ": transfer 7 # 32 20000 0 99 lock"}},
		{says: "after 100 ms it is free for a shorter moment",
			holder: ours(3), tickets: map[string]int{third(1): 9, other(7): 5}, listens: []string{otherUUID}, ops: []redisop.Op{passOp(lock, 3, 100)},
			want: []string{"paused, 0 listeners"}, queue: []string{other(7)},
			messages: []string{otherUUID + ": free 4 lock"}},
		{says: "a lock whose counter is broken is free, and the first of the queue receives that",
			holder: ours(3), counter: "seventeen", tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 0)},
			want: []string{"done"}, queue: []string{other(7)},
			messages: []string{otherUUID + ": free 0 lock"}},
		{says: "so is a lock that is dropped without a lease to pass on",
			holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{dropOp(lock, 3)},
			want: []string{"done"}, queue: []string{other(7)},
			messages: []string{otherUUID + ": free 0 lock"}},

		{says: "a Take in order lets the first of the queue have a free lock",
			tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{inOrder(waitOp(lock, 4, 0))},
			want: []string{"held, 0 listeners, rank 0, ticket 4, not recalled"}, after: other(7), queue: []string{ours(4)},
			messages: []string{otherUUID + ": transfer 7 # 32 30000 1 0 lock"}},
		{says: "which may be its own ticket",
			tickets: map[string]int{third(1): 9, ours(2): 7, other(7): 5}, listens: []string{otherUUID}, ops: []redisop.Op{inOrder(waitOp(lock, 4, 2))},
			want: []string{"done, 1 wait, ticket 2"}, after: ours(2), queue: []string{other(7)}},
		{says: "a Take in order of a lock without a queue takes it",
			ops:  []redisop.Op{inOrder(waitOp(lock, 4, 0))},
			want: []string{"done, 0 wait, ticket 0"}, after: ours(4)},

		{says: "a ticket stands in the queue as of when its request arrived",
			holder: other(7), tickets: map[string]int{third(1): 9, third(2): 5}, listens: both, ops: []redisop.Op{arrived(waitOp(lock, 4, 0), 7)},
			want: []string{"held, 0 listeners, rank 1, ticket 4, recalled"}, after: other(7), queue: []string{third(1), ours(4), third(2)},
			messages: []string{otherUUID + ": recall lock"}},
		{says: "and moves to when another one did",
			holder: other(7), tickets: map[string]int{ours(3): 20, third(1): 9, third(2): 5}, listens: both, ops: []redisop.Op{arrived(waitOp(lock, 4, 3), 7)},
			want: []string{"held, 0 listeners, rank 1, ticket 3, recalled"}, after: other(7), queue: []string{third(1), ours(3), third(2)},
			messages: []string{otherUUID + ": recall lock"}},
		{says: "and if it was the first and a program has the lock, the next one has to ask",
			holder: "redisson:1", tickets: map[string]int{ours(3): 20, third(1): 9, other(7): 5}, listens: both, ops: []redisop.Op{arrived(waitOp(lock, 4, 3), 7)},
			want: []string{"held, 0 listeners, rank 1, ticket 3, recall missed"}, after: "redisson:1", queue: []string{third(1), ours(3), other(7)},
			messages: []string{thirdUUID + ": free 0 lock"}},
		{says: "a ticket of a request that arrived long ago is not old",
			tickets: map[string]int{other(7): 60}, signs: map[string]int{otherUUID: 0}, listens: both, ops: []redisop.Op{arrived(waitOp(lock, 4, 0), 40)},
			want: []string{"held, 0 listeners, rank 0, ticket 4, not recalled"}, after: other(7), queue: []string{ours(4)},
			messages: []string{otherUUID + ": transfer 7 # 32 30000 1 0 lock"}},
		{says: "a lock that is dropped and wanted again passes to the first that arrived",
			holder: ours(3), tickets: map[string]int{other(7): 9, third(1): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 30), again(arrived(waitOp(lock, 4, 0), 7))},
			want: []string{"passed, 2 wait", "held, 0 listeners, rank 0, ticket 4, not recalled"}, after: other(7), queue: []string{ours(4), third(1)},
			messages: []string{otherUUID + ": transfer 7 # 32 20000 2 30 lock"}},
		{says: "which may be the next one of this sidecar",
			holder: ours(3), tickets: map[string]int{third(1): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 30), again(arrived(waitOp(lock, 4, 0), 7))},
			want: []string{"passed, 1 wait", "done, 1 wait, ticket 0"}, after: ours(4), queue: []string{third(1)}},
		{says: "it is left free for a moment with its place in the queue",
			holder: ours(3), tickets: map[string]int{third(1): 5}, listens: both, ops: []redisop.Op{passOp(lock, 3, 100), again(arrived(waitOp(lock, 4, 0), 7))}, freedFor: 4,
			want: []string{"paused, 0 listeners", "free, 0 listeners, rank 0, ticket 4, not recalled"}, queue: []string{ours(4), third(1)}},
		{says: "also if no other sidecar waits",
			holder: ours(3), listeners: true, ops: []redisop.Op{passOp(lock, 3, 50), again(arrived(waitOp(lock, 4, 0), 7))}, freedFor: 10,
			want: []string{"paused, 1 listeners", "free, 1 listeners, rank 0, ticket 4, not recalled"}, queue: []string{ours(4)}},
		{says: "an Arrive says when the first of the queue arrived",
			tickets: map[string]int{third(1): 9, other(7): 5}, ops: []redisop.Op{{Kind: redisop.Arrive, Name: lock}},
			want: []string{"arrived, the first 9 s ago"}, queue: []string{third(1), other(7)}},
		{says: "or that there is none",
			ops:  []redisop.Op{{Kind: redisop.Arrive, Name: lock}},
			want: []string{"arrived, none before"}},

		{says: "names with and without braces have different queues",
			name: "{lock}", holder: ours(3), tickets: map[string]int{other(7): 5}, listens: both, ops: []redisop.Op{passOp("{lock}", 3, 0)},
			want: []string{"done"}, queue: []string{other(7)}},
	} {
		t.Run(tt.says, func(t *testing.T) {
			backends(t, func(t *testing.T, b backend) { tt.run(t, b, queue) })
		})
	}
}

var tokenInMessage = regexp.MustCompile(`^(\S+: transfer \d+) (\d+)`)

// run runs the case. The tickets are in this queue.
func (tt *queueCase) run(t *testing.T, b backend, queue string) {
	r := connected(t, b.url)
	name := tt.name
	if name == "" {
		name = "lock"
	}
	r.await(redisop.Message{Kind: redisop.Freed, Name: name, PauseMS: tt.freedFor})
	if tt.holder != "" {
		b.admin.HSet(ctx, name, tt.holder, "1")
		b.admin.PExpire(ctx, name, time.Minute)
	}
	if tt.counter != "" {
		b.admin.Set(ctx, counterOf(name), tt.counter, 0)
	}
	now := must(b.admin.Time(ctx).Result())
	for member, age := range tt.tickets {
		b.admin.ZAdd(ctx, queue, redis.Z{Score: float64(now.Add(-time.Duration(age) * time.Second).UnixMicro()), Member: member})
	}
	for uuid, age := range tt.signs {
		b.admin.HSet(ctx, "locksidecar_signs:{lock}", uuid, now.Add(-time.Duration(age)*time.Second).Unix())
	}
	if tt.listeners {
		program := b.admin.Subscribe(ctx, channelOf(name))
		defer program.Close()
		must(program.Receive(ctx))
	}
	channels := []string{sidecarChannel("nothing")}
	for _, uuid := range tt.listens {
		channels = append(channels, sidecarChannel(uuid))
	}
	sidecars := b.admin.Subscribe(ctx, channels...)
	defer sidecars.Close()
	for range channels {
		must(sidecars.Receive(ctx))
	}

	ops := slices.Clone(tt.ops)
	for i := range ops {
		if age := ops[i].Arrived; age != 0 {
			ops[i].Arrived = uint64(now.UnixMicro()) - age*1_000_000
		}
	}
	var got []string
	for _, res := range r.ask(ops...) {
		got = append(got, showQueueResult(&res))
	}

	if !slices.Equal(got, tt.want) {
		t.Errorf("got %q, want %q", got, tt.want)
	}
	if tt.freedFor != 0 {
		<-r.messages
	}
	hash := b.admin.HGetAll(ctx, name).Val()
	want := map[string]string{}
	if tt.after != "" {
		want[tt.after] = "1"
	}
	if !maps.Equal(hash, want) {
		t.Errorf("the lock is %v, want %v", hash, want)
	}
	if ttl := b.admin.PTTL(ctx, name).Val(); tt.after != "" && (ttl <= 0 || ttl > time.Minute || tt.after != tt.holder && ttl > 30*time.Second) {
		t.Errorf("it lives for %v", ttl)
	}
	if members := b.admin.ZRange(ctx, queue, 0, -1).Val(); !slices.Equal(members, tt.queue) {
		t.Errorf("the queue is %v, want %v", members, tt.queue)
	}
	b.admin.Publish(ctx, sidecarChannel("nothing"), "marker")
	var messages []string
	for {
		m := must(sidecars.ReceiveMessage(ctx))
		if m.Payload == "marker" {
			break
		}
		text := strings.TrimPrefix(m.Channel, sidecarChannel("")) + ": " + m.Payload
		if parts := tokenInMessage.FindStringSubmatch(text); parts != nil {
			if counter := b.admin.Get(ctx, counterOf(name)).Val(); parts[2] != counter {
				t.Errorf("the last token in %q is not the counter, %s", text, counter)
			}
			text = parts[1] + " #" + text[len(parts[0]):]
		}
		messages = append(messages, text)
	}
	if !slices.Equal(messages, tt.messages) {
		t.Errorf("sidecars received %q, want %q", messages, tt.messages)
	}
}

func showListeners(l redisop.Listeners) string {
	switch l.State {
	case redisop.Counted:
		return fmt.Sprintf("%d listeners", l.N)
	case redisop.Uncounted:
		return "listeners uncounted"
	}
	return "listeners unknown"
}

func showQueueResult(res *redisop.Result) string {
	switch {
	case res.Outcome == redisop.HeldByOther:
		text := fmt.Sprintf("held, %s", showListeners(res.Listeners))
		if res.LeftFree {
			text = "free, " + showListeners(res.Listeners)
		}
		if res.IsQueued {
			text += fmt.Sprintf(", rank %d, ticket %d, %s", res.Rank, res.Ticket, [...]string{"not recalled", "recalled", "recall missed"}[res.Recall])
		}
		return text
	case res.Outcome == redisop.Done && res.Kind == redisop.Arrive && res.FirstArrived == 0:
		return "arrived, none before"
	case res.Outcome == redisop.Done && res.Kind == redisop.Arrive:
		return fmt.Sprintf("arrived, the first %d s ago", (res.Arrived-res.FirstArrived)/1_000_000)
	case res.Outcome == redisop.Done && res.Kind == redisop.Take:
		return fmt.Sprintf("done, %d wait, ticket %d", res.Waiting, res.Ticket)
	case res.Outcome == redisop.Done && res.Passed:
		return fmt.Sprintf("passed, %d wait", res.Waiting)
	case res.Outcome == redisop.Done && res.Paused:
		return "paused, " + showListeners(res.Listeners)
	case res.Outcome == redisop.Done:
		return "done"
	}
	return fmt.Sprintf("%+v", *res)
}

// A queue and its signs expire 10 minutes after they were last used.
func TestQueuesExpire(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "lock", field(otherUUID, 1), "1")
		isTenMinutes := func(key string) bool {
			ttl := b.admin.PTTL(ctx, key).Val()
			return ttl > 9*time.Minute && ttl <= 10*time.Minute
		}
		before := must(b.admin.Time(ctx).Result())
		r.one(waitOp("lock", 1, 0))
		score := b.admin.ZScore(ctx, "locksidecar_queue:{lock}", field(ourUUID, 1)).Val()
		if after := must(b.admin.Time(ctx).Result()); int64(score) < before.UnixMicro() || int64(score) > after.UnixMicro() {
			t.Errorf("the ticket came at %.0f", score)
		}
		if !isTenMinutes("locksidecar_queue:{lock}") {
			t.Error("a queue does not expire after 10 minutes")
		}
		if n := b.admin.Exists(ctx, "locksidecar_signs:{lock}").Val(); n != 0 {
			t.Error("a ticket that has just come needs no sign")
		}
		b.admin.PExpire(ctx, "locksidecar_queue:{lock}", time.Minute)
		r.one(waitOp("lock", 2, 1))
		if !isTenMinutes("locksidecar_queue:{lock}") || !isTenMinutes("locksidecar_signs:{lock}") {
			t.Error("a queue that is asked for again does not expire 10 minutes later")
		}
		if again := b.admin.ZScore(ctx, "locksidecar_queue:{lock}", field(ourUUID, 1)).Val(); again != score {
			t.Errorf("the ticket came at %.0f, and again at %.0f", score, again)
		}
		sign, _ := b.admin.HGet(ctx, "locksidecar_signs:{lock}", ourUUID).Int64()
		if sign < before.Unix() || sign > must(b.admin.Time(ctx).Result()).Unix() {
			t.Errorf("the sign is %d", sign)
		}
	})
}

// In a Redis that is full no host can queue, and locks still pass on. An operation that may
// write without memory runs after those that must not: once a script has written, Redis
// grants it memory.
func TestQueueOfAFullRedis(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	set := func(name string, members ...string) {
		for i, member := range members {
			a.ZAdd(ctx, "locksidecar_queue:{"+name+"}", redis.Z{Score: float64(must(a.Time(ctx).Result()).UnixMicro() - int64(10-i)*1000), Member: member})
		}
	}
	a.HSet(ctx, "held", field(otherUUID, 1), "1")
	a.HSet(ctx, "asked", field(otherUUID, 1), "1")
	set("asked", field(ourUUID, 2))
	a.HSet(ctx, "ours", field(ourUUID, 3), "1")
	set("ours", field(otherUUID, 5))
	listens := a.Subscribe(ctx, sidecarChannel(otherUUID))
	defer listens.Close()
	must(listens.Receive(ctx))
	must(a.ConfigSet(ctx, "maxmemory", "1").Result())

	free := takeOp("free", 4)
	free.Reserve = 2
	results := r.ask(waitOp("asked", 4, 2), free, waitOp("held", 4, 0), passOp("ours", 3, 0))

	must(a.ConfigSet(ctx, "maxmemory", "0").Result())
	if res := results[0]; res.Outcome != redisop.HeldByOther || res.Rank != 0 || res.Ticket != 2 {
		t.Errorf("a Take that asks again: %+v", res)
	}
	if a.HLen(ctx, "locksidecar_signs:{asked}").Val() != 1 {
		t.Error("it leaves no sign")
	}
	if res := results[1]; res.Outcome != redisop.Retryable {
		t.Errorf("a Take of a free lock: %+v", res)
	}
	if res := results[2]; res.Outcome != redisop.HeldByOther || res.IsQueued || res.Recall != redisop.NotRecalled {
		t.Errorf("a Take that would have to queue: %+v", res)
	}
	if res := results[3]; !res.Passed || a.HGet(ctx, "ours", field(otherUUID, 5)).Val() != "1" {
		t.Errorf("a Drop of a lock that has a queue: %+v", res)
	}
}

// A key of another program under the name of a queue is as good as no queue, and is left alone.
func TestQueueKeyOfAnotherType(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.HSet(ctx, "held", field(otherUUID, 1), "1")
		b.admin.HSet(ctx, "ours", field(ourUUID, 1), "1")
		for _, name := range []string{"held", "ours"} {
			b.admin.Set(ctx, "locksidecar_queue:{"+name+"}", "x", 0)
		}
		results := r.ask(waitOp("held", 2, 1), passOp("ours", 1, 0))
		if res := results[0]; res.Outcome != redisop.HeldByOther || res.IsQueued || res.Ticket != 0 {
			t.Errorf("a Take: %+v", res)
		}
		if res := results[1]; res.Outcome != redisop.Done || res.Passed || b.admin.Exists(ctx, "ours").Val() != 0 {
			t.Errorf("a Drop: %+v", res)
		}
		if got := b.admin.Get(ctx, "locksidecar_queue:{held}").Val(); got != "x" {
			t.Errorf("the key of another program is %q now", got)
		}
	})
}

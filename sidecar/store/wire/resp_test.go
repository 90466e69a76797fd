package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

var replyCases = []struct {
	bytes string
	want  Reply
}{
	{"+OK\r\n", Reply{Kind: '$', Text: "OK"}},
	{"+\r\n", Reply{Kind: '$'}},
	{"-ERR no\r\n", Reply{Kind: '-', Text: "ERR no"}},
	{":0\r\n", Reply{Kind: ':'}},
	{":-12\r\n", Reply{Kind: ':', Num: -12}},
	{":1700000000000000\r\n", Reply{Kind: ':', Num: 1700000000000000}},
	{":9223372036854775807\r\n", Reply{Kind: ':', Num: math.MaxInt64}},
	{":-9223372036854775808\r\n", Reply{Kind: ':', Num: math.MaxInt64}},
	{"$-1\r\n", Reply{}},
	{"*-1\r\n", Reply{}},
	{"$0\r\n\r\n", Reply{Kind: '$'}},
	{"$4\r\na\r\nb\r\n", Reply{Kind: '$', Text: "a\r\nb"}},
	{"*0\r\n", Reply{Kind: '*'}},
	{"*3\r\n:1\r\n:7\r\n:-1\r\n", Reply{Kind: '*', List: []Reply{{Kind: ':', Num: 1}, {Kind: ':', Num: 7}, {Kind: ':', Num: -1}}}},
	{"_\r\n", Reply{}},
	{"#t\r\n", Reply{Kind: '#', Num: 1}},
	{"#f\r\n", Reply{Kind: '#'}},
	{",1.25e3\r\n", Reply{Kind: ',', Text: "1.25e3"}},
	{"(3492890328409238509324850943850943825024385\r\n", Reply{Kind: '(', Text: "3492890328409238509324850943850943825024385"}},
	{"=7\r\ntxt:a\r\n\r\n", Reply{Kind: '$', Text: "a\r\n"}},
	{"!6\r\nOOM no\r\n", Reply{Kind: '-', Text: "OOM no"}},
	{"~1\r\n:1\r\n", Reply{Kind: '~', List: []Reply{{Kind: ':', Num: 1}}}},
	{"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n%1\r\n+c\r\n*0\r\n", Reply{Kind: '%', List: []Reply{
		{Kind: '$', Text: "a"}, {Kind: ':', Num: 1}, {Kind: '$', Text: "b"},
		{Kind: '*', List: []Reply{{Kind: '%', List: []Reply{{Kind: '$', Text: "c"}, {Kind: '*'}}}}}}}},
	{">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n", Reply{Kind: '>', List: []Reply{{Kind: '$', Text: "message"}, {Kind: '$', Text: "c"}, {Kind: '$', Text: "0"}}}},
	{">2\r\n+x\r\n*1\r\n_\r\n", Reply{Kind: '>', List: []Reply{{Kind: '$', Text: "x"}, {Kind: '*', List: []Reply{{}}}}}},
	{"*2\r\n*2\r\n:5\r\n$1\r\nx\r\n+OOM\r\n", Reply{Kind: '*', List: []Reply{{Kind: '*', List: []Reply{{Kind: ':', Num: 5}, {Kind: '$', Text: "x"}}}, {Kind: '$', Text: "OOM"}}}},
}

// Each reply is read whole, byte by byte, and with another behind it.
func TestReplies(t *testing.T) {
	for _, tt := range replyCases {
		for how, in := range map[string]io.Reader{
			"whole":        strings.NewReader(tt.bytes),
			"byte by byte": iotest.OneByteReader(strings.NewReader(tt.bytes)),
			"and another":  strings.NewReader(tt.bytes + ":9\r\n"),
		} {
			r := NewReplies(in)
			got, err := r.Next()
			if err != nil || !sameReply(got, tt.want) {
				t.Errorf("%q, %s: got %+v, %v", tt.bytes, how, got, err)
			}
			next, err := r.Next()
			if how == "and another" {
				if err != nil || !sameReply(next, Reply{Kind: ':', Num: 9}) {
					t.Errorf("%q: behind it %+v, %v", tt.bytes, next, err)
				}
			} else if err != io.EOF {
				t.Errorf("%q, %s: behind it %v, want EOF", tt.bytes, how, err)
			}
		}
		for i := 1; i < len(tt.bytes); i++ {
			if got, err := NewReplies(strings.NewReader(tt.bytes[:i])).Next(); err == nil || errors.Is(err, ErrStrange) {
				t.Errorf("%q, cut after %d: got %+v, %v", tt.bytes, i, got, err)
			}
		}
	}
}

func sameReply(a, b Reply) bool {
	return a.Kind == b.Kind && a.Num == b.Num && a.Text == b.Text && slices.EqualFunc(a.List, b.List, sameReply)
}

func TestWhatIsNoReplyIsRefused(t *testing.T) {
	for _, text := range []string{
		"\r\n", "x\r\n", "HTTP/1.1 400 Bad Request\r\n", ":\r\n", ":1x\r\n", ":-\r\n", ":99999999999999999999\r\n", ":1\n", "+OK\n",
		"$-2\r\n", "$x\r\n", "$1\r\nab\r\n", fmt.Sprintf("$%d\r\n", maxSkippedText+1), fmt.Sprintf("$%d\r\n%s:)", MaxReplyText+1, strings.Repeat("x", MaxReplyText+1)), "*-2\r\n", "*x\r\n", fmt.Sprintf("*%d\r\n", maxReplyList+1),
		strings.Repeat("*1\r\n", maxReplyDepth+2) + ":1\r\n", "+" + strings.Repeat("x", MaxReplyText) + "\r\n",
		"_x\r\n", "#x\r\n", "#\r\n", "=3\r\ntxt\r\n", "=5\r\ntextx\r\n", "=-1\r\n", "!-1\r\n", "%-1\r\n", "~-1\r\n", ">-1\r\n",
		"*1\r\n>1\r\n:1\r\n", ">1\r\n>1\r\n:1\r\n", "|1\r\n+a\r\n+b\r\n:1\r\n", "$?\r\n", "*?\r\n", fmt.Sprintf("%%%d\r\n", maxReplyList+1),
		fmt.Sprintf(">1\r\n$%d\r\n", maxSkippedText+1), fmt.Sprintf(">1\r\n$%d\r\n%s:)", MaxReplyText+1, strings.Repeat("x", MaxReplyText+1)),
	} {
		if got, err := NewReplies(strings.NewReader(text)).Next(); !errors.Is(err, ErrStrange) {
			t.Errorf("%.40q: got %+v, %v", text, got, err)
		}
	}
}

// Any program may publish or store a text of any length. It is read, and what follows is
// understood.
func TestLongTextIsReadAndNotKept(t *testing.T) {
	text := func(n int) string { return fmt.Sprintf("$%d\r\n%s\r\n", n, strings.Repeat("x", n)) }
	const half = MaxReplyText / 2
	in := ">3\r\n" + text(7) + text(1) + text(1<<20) +
		">4\r\n" + text(half) + text(half) + text(1) + text(0) +
		":7\r\n" + text(MaxReplyText) +
		text(MaxReplyText+1) + "*3\r\n" + text(1) + text(1<<20) + text(MaxReplyText) + ":8\r\n"
	kept := func(n int) Reply { return Reply{Kind: '$', Text: strings.Repeat("x", n)} }
	long := Reply{Kind: longText}
	for how, from := range map[string]io.Reader{"whole": strings.NewReader(in), "byte by byte": iotest.OneByteReader(strings.NewReader(in))} {
		r := NewReplies(from)
		for i, want := range []Reply{
			{Kind: '>', List: []Reply{kept(7), kept(1), long}},
			{Kind: '>', List: []Reply{kept(half), kept(half), long, kept(0)}},
			{Kind: ':', Num: 7},
			kept(MaxReplyText),
			long,
			{Kind: '*', List: []Reply{kept(1), long, kept(MaxReplyText)}},
			{Kind: ':', Num: 8},
		} {
			if got, err := r.Next(); err != nil || !sameReply(got, want) {
				t.Fatalf("%s: reply %d is %v, %v", how, i, got, err)
			}
		}
	}
}

// Whatever a server says: no panic, no more memory than the bounds allow, and what
// was understood is understood again in the same way.
func FuzzReplies(f *testing.F) {
	for _, tt := range replyCases {
		f.Add([]byte(tt.bytes))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		whole, pieces := NewReplies(bytes.NewReader(data)), NewReplies(iotest.OneByteReader(bytes.NewReader(data)))
		for {
			a, errA := whole.Next()
			b, errB := pieces.Next()
			if (errA == nil) != (errB == nil) || errA == nil && !sameReply(a, b) {
				t.Fatalf("whole: %+v, %v; byte by byte: %+v, %v", a, errA, b, errB)
			}
			if errA != nil {
				return
			}
		}
	})
}

// A command is what Redis reads: an array of strings.
func TestCommandsAreEncoded(t *testing.T) {
	e := Encoder{Prefix: ourUUID + ":", Floor: 1700000000000001, Origin: "0123abcd"}
	const floor = "\x01\x40\x1e\x18\x24\x0a\x06"
	prefixed := Encoder{Prefix: ourUUID + ":", Keys: NewKeyspace("app1:"), Origin: NoOrigin}
	moved := redisop.Op{Kind: redisop.Take, Name: "größe 1", HoldID: 12, Count: 3, LeaseMS: 30000, Asked: redisop.Asked{Reserve: 64, Flags: redisop.RequireExisting}}
	again := takeOp("a{b}c", 1<<53-1)
	again.Flags |= redisop.AfterPendingDrop
	lone := takeOp("lone", 5)
	lone.Flags |= redisop.AfterPendingDrop // a drop that was said before
	mixed := []redisop.Op{moved, lone, dropOp("a{b}c", 1<<53-2), takeOp("b", 4), again, dropOp("c", 6)}
	wait := func(op redisop.Op, ticket uint64) redisop.Op {
		op.Flags, op.Ticket = op.Flags|redisop.Enqueue, ticket
		return op
	}
	drop := func(name string, num, ticket uint64, passedMS uint32) redisop.Op {
		return redisop.Op{Kind: redisop.Drop, Name: name, HoldID: num, LeaseMS: 40_000, Asked: redisop.Asked{Ticket: ticket}, PassedMS: passedMS}
	}
	reserves := wait(takeOp("d", 8), 0)
	reserves.Reserve, reserves.Flags = 64, reserves.Flags|redisop.CountListeners|redisop.AfterPendingDrop
	inOrder := wait(takeOp("e", 9), 0)
	inOrder.Flags |= redisop.InOrder
	asks := wait(takeOp("f", 11), 3)
	asks.Flags |= redisop.AfterPendingDrop
	arrived := wait(takeOp("b", 21), 0)
	arrived.Flags, arrived.Arrived = arrived.Flags|redisop.InOrder, 1700000000000123
	arrivedAgain := arrived
	arrivedAgain.Flags |= redisop.AfterPendingDrop
	queued := []redisop.Op{
		drop("d", 7, 0, 60), reserves, drop("f", 10, 2, 20), asks, wait(takeOp("g", 12), 13), inOrder, wait(takeOp("h", 14), 0), takeOp("i", 15),
		drop("j", 16, 0, 70), drop("k", 17, 18, 80),
	}
	permitsWait := permitsOp("b{c}", 8, 0, 3)
	permitsWait.Times, permitsWait.Arrived, permitsWait.Flags = 2, 1700000000000123, redisop.Enqueue|redisop.RequireExisting
	ofPermits := func(op redisop.Op) redisop.Op { op.Of = redisop.KindPermits; return op }
	permitsDrop, permitsRenew, permitsCheck := ofPermits(dropOp("a", 9)), ofPermits(renewOp("a", 7)), ofPermits(checkOp("a", 7))
	permitsDrop.Count, permitsRenew.Count, permitsCheck.Count = 4, 5, 5
	ofReadWrite := func(op redisop.Op, mode redisop.Mode) redisop.Op {
		op.Of, op.Count = redisop.KindReadWrite, uint32(mode)
		return op
	}
	rwWait := rwOp("b{c}", 8, redisop.SharedMode, redisop.ExclusiveMode, redisop.ReadersQueue|redisop.WritersQueue)
	rwWait.Arrived, rwWait.Reserve, rwWait.Flags = 1700000000000123, 64, redisop.RequireExisting|redisop.Yields
	for _, tt := range []struct {
		bytes []byte
		want  []string
	}{
		{e.AppendRun(nil, Run{Script: ReadWrite}, 0, 7, []redisop.Op{rwOp("a", 7, redisop.NoMode, redisop.SharedMode, redisop.ReadersQueue), rwWait,
			ofReadWrite(dropOp("a", 9), redisop.SharedMode), ofReadWrite(renewOp("a", 7), redisop.SharedMode), ofReadWrite(checkOp("b{c}", 7), redisop.ExclusiveMode)}),
			[]string{"evalsha", ReadWrite.SHA, "30",
				"a", "{a}:locksidecar:0:rwlock_timeout:1", "redisson_lock_token:{a}", "locksidecar_readers:{a}", "locksidecar_writers:{a}", "locksidecar_asked:{a}",
				"b{c}", "b{c}:locksidecar:1:rwlock_timeout:1", "redisson_lock_token:b{c}", "locksidecar_readers::b{c}", "locksidecar_writers::b{c}", "locksidecar_asked::b{c}",
				"a", "{a}:locksidecar:0:rwlock_timeout:1", "redisson_lock_token:{a}", "locksidecar_readers:{a}", "locksidecar_writers:{a}", "locksidecar_asked:{a}",
				"a", "{a}:locksidecar:0:rwlock_timeout:1", "a", "{a}:locksidecar:0:rwlock_timeout:1", "a", "{a}:locksidecar:0:rwlock_timeout:1",
				"b{c}", "b{c}", "b{c}", "b{c}", "b{c}", "b{c}",
				ourUUID + ":", "\x00\x00\x00\x00\x00\x00" + floor + "0 7 0 0123abcd ",
				"t 7 n r r 30000 1 0", "tmy 8 r w b 30000 64 1700000000000123", "d 9 n n n 0 0 0", "r 7 r n n 30000 0 0", "c 7 w n n 0 0 0"}},
		{e.AppendRun(nil, Run{Script: AcquireRelease}, 0, 7, mixed),
			[]string{"evalsha", AcquireRelease.SHA, "9", "b", "lone", "größe 1", "c", "a{b}c",
				"redisson_lock_token:{b}", "redisson_lock_token:{lone}", "redisson_lock_token:{größe 1}", "redisson_lock_token:a{b}c",
				ourUUID + ":4", "\x02\x01\x01\x01\x00\x00" + floor + "0 7 0 0123abcd ", "30000",
				"5", "12", "3", "64", "m", "6", "9007199254740990", "9007199254740991", "1", ""}},
		{e.AppendRun(nil, Run{Script: AcquireRelease}, 0, 7, queued),
			[]string{"evalsha", AcquireRelease.SHA, "14", "e", "h", "i", "g", "j", "k", "d", "f",
				"redisson_lock_token:{e}", "redisson_lock_token:{h}", "redisson_lock_token:{i}", "redisson_lock_token:{g}", "redisson_lock_token:{d}", "redisson_lock_token:{f}",
				ourUUID + ":9", "\x03\x01\x02\x00\x00\x00" + floor + "0 7 40000 0123abcd 2 0 0 1 0 0 0 0 0 1 13 0 0 0 70 0 18 80 0 0 60 1 0 0 0 2 20 1 3 0 ", "30000",
				"14", "15", "12", "1", "1", "", "16", "17",
				"7", "8", "64", "c", "10", "11", "1", ""}},
		{e.AppendRun(nil, Run{Script: AcquireRelease}, 0, 7, []redisop.Op{arrived}),
			[]string{"evalsha", AcquireRelease.SHA, "2", "b", "redisson_lock_token:{b}",
				ourUUID + ":21", "\x01\x00\x00\x00\x00\x00" + floor + "0 7 0 0123abcd 3 0 1700000000000123 ", "30000"}},
		{e.AppendRun(nil, Run{Script: AcquireRelease}, 0, 7, []redisop.Op{drop("b", 20, 0, 120), arrivedAgain}),
			[]string{"evalsha", AcquireRelease.SHA, "2", "b", "redisson_lock_token:{b}",
				ourUUID + ":20", "\x00\x00\x00\x02\x00\x00" + floor + "0 7 40000 0123abcd 0 0 120 3 0 1700000000000123 ", "30000",
				"21", "1", ""}},
		{e.AppendRun(nil, Run{Script: Arrive}, 0, 7, []redisop.Op{{Kind: redisop.Arrive, Name: "a"}, {Kind: redisop.Arrive, Name: "b{c}"}}),
			[]string{"evalsha", Arrive.SHA, "2", "a", "b{c}"}},
		{e.AppendRun(nil, Run{AcquireRelease, true}, 0, 7, []redisop.Op{dropOp("a", 7)}), []string{"eval", AcquireRelease.Text, "1", "a",
			ourUUID + ":7", "\x00\x00\x01\x00\x00\x00" + floor + "0 7 0 0123abcd "}},
		{e.AppendRun(nil, Run{Script: Renew}, 0, 7, []redisop.Op{renewOp("a", 200), renewOp("b", 300)}), []string{"evalsha", Renew.SHA, "2", "a", "b",
			ourUUID + ":", "30000", "1", "0", "200", "300"}},
		{e.AppendRun(nil, Run{Script: Renew}, 0, 7, []redisop.Op{renewOp("a", 8), renewOp("b", 1040), renewOp("c", 200)}), []string{"evalsha", Renew.SHA, "3", "a", "b", "c",
			ourUUID + ":", "30000", "1", "2", "8", "1040", "200"}},
		{e.AppendRun(nil, Run{Script: Renew}, 0, 7, []redisop.Op{checkOp("a", 1)}), []string{"evalsha", Renew.SHA, "1", "a",
			ourUUID + ":", "0", "1", "1", "1"}},
		{prefixed.AppendRun(nil, Run{Script: AcquireRelease}, 0, 7, []redisop.Op{takeOp("größe", 1), dropOp("a{b}", 2)}), []string{"evalsha", AcquireRelease.SHA, "3",
			"app1:größe", "app1:a{b}", "redisson_lock_token:{app1:größe}",
			ourUUID + ":1", "\x01\x00\x01\x01\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00" + "0 7 0 - ", "30000", "2"}},
		{prefixed.AppendRun(nil, Run{Script: Renew}, 0, 7, []redisop.Op{renewOp("a", 200)}), []string{"evalsha", Renew.SHA, "1", "app1:a",
			ourUUID + ":", "30000", "1", "0", "200"}},
		{e.AppendRun(nil, Run{Script: Permits}, 0, 7, []redisop.Op{permitsOp("a", 7, 2, 3), permitsWait, permitsDrop, permitsRenew, permitsCheck}), []string{"evalsha", Permits.SHA, "15",
			"a", "locksidecar_wanted:{a}", "locksidecar_wants:{a}",
			"b{c}", "locksidecar_wanted::b{c}", "locksidecar_wants::b{c}",
			"a", "locksidecar_wanted:{a}", "locksidecar_wants:{a}", "a", "a", "a", "a", "a", "a",
			ourUUID + ":", "\x00\x00\x00\x00\x00\x00" + floor + "0 7 0 0123abcd ",
			"t 7 2 3 10 30000", "tqm 8 0 3 10 30000 2 1 1700000000000123", "d 9", "r 7 5 0 0 30000", "c 7 5 0 0 0"}},
		{AppendLoad(nil, AcquireRelease), []string{"script", "load", AcquireRelease.Text}},
		{AppendPing(nil), []string{"ping"}},
	} {
		r := NewReplies(bytes.NewReader(tt.bytes))
		command, err := r.Next()
		var got []string
		for _, arg := range command.List {
			got = append(got, arg.Text)
		}
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("got %.60q, %v\nwant %.60q", got, err, tt.want)
		}
		if n := r.in.Buffered(); n != 0 {
			t.Errorf("%q: %d bytes too many", tt.want[0], n)
		}
	}
}

// What is asked at one time in whatever order takes few runs.
func TestWhatIsAskedAtOneTimeIsGathered(t *testing.T) {
	var ops []redisop.Op
	for i := range 20 {
		short, twice := takeOp(fmt.Sprint("short:", i), 1), renewOp(fmt.Sprint("twice:", i), 1)
		short.LeaseMS, twice.Count = 5000, 2
		ops = append(ops, short, twice, dropOp(fmt.Sprint("drop:", i), 1), renewOp(fmt.Sprint("keep:", i), 1), takeOp(fmt.Sprint("take:", i), 1))
	}
	SortForBatching(0, ops, nil)
	var e Encoder
	var runs []string
	for len(ops) > 0 {
		_, n := BatchPrefix(ops, nil)
		e.orderArgs(ops[:n])
		var kinds []string
		for _, op := range ops[:n] {
			kind, _, _ := strings.Cut(op.Name, ":")
			if len(kinds) == 0 || kinds[len(kinds)-1] != kind {
				kinds = append(kinds, kind)
			}
		}
		runs = append(runs, fmt.Sprint(n, kinds))
		ops = ops[n:]
	}
	if got, want := strings.Join(runs, " "), "20 [keep] 20 [twice] 40 [short drop] 20 [take]"; got != want {
		t.Errorf("runs %s; want %s", got, want)
	}
}

// A Drop runs before the Take that is pipelined after it, whatever leases they have.
func TestDropComesBeforeItsTake(t *testing.T) {
	take := takeOp("lock", 2)
	take.Flags, take.LeaseMS = take.Flags|redisop.AfterPendingDrop, 5000
	short := takeOp("short", 1)
	short.LeaseMS = 10_000
	ops := []redisop.Op{short, passOp("lock", 1, 0), take}
	SortForBatching(0, ops, nil)
	var e Encoder
	var order []string
	for len(ops) > 0 {
		_, n := BatchPrefix(ops, nil)
		e.orderArgs(ops[:n])
		for _, op := range ops[:n] {
			order = append(order, fmt.Sprint(op.Name, op.HoldID))
		}
		ops = ops[n:]
	}
	if got, want := strings.Join(order, " "), "lock1 lock2 short1"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

// What may run together does, up to a bound.
func TestOneScriptCarriesOutManyOperations(t *testing.T) {
	longer := takeOp("a", 1)
	longer.LeaseMS++
	ops := func(n int, op redisop.Op) []redisop.Op { return slices.Repeat([]redisop.Op{op}, n) }
	drop, take, keep, twice := dropOp("a", 1), takeOp("a", 1), renewOp("a", 1), renewOp("a", 1)
	twice.Count = 2
	permits, longPermits := permitsOp("a", 1, 0, 1), permitsOp("b", 1, 0, 1)
	longPermits.LeaseMS++
	shared, longShared := rwOp("a", 1, redisop.NoMode, redisop.SharedMode, 0), rwOp("b", 1, redisop.NoMode, redisop.SharedMode, 0)
	longShared.LeaseMS++
	for _, tt := range []struct {
		says   string
		ops    []redisop.Op
		script *Script
		want   int
	}{
		{"one", []redisop.Op{take}, AcquireRelease, 1},
		{"takes and drops", []redisop.Op{drop, take, drop, take}, AcquireRelease, 4},
		{"another lease", []redisop.Op{take, drop, longer, take}, AcquireRelease, 2},
		{"drops go with any", []redisop.Op{drop, longer, drop, longer}, AcquireRelease, 4},
		{"drops that pass locks on with another lease", []redisop.Op{drop, passOp("a", 1, 0), longer}, AcquireRelease, 1},
		{"drops that pass locks on, and takes", []redisop.Op{passOp("a", 1, 0), longer, passOp("b", 1, 0)}, AcquireRelease, 3},
		{"renewals", []redisop.Op{keep, keep, take}, scriptOf(redisop.Renew), 2},
		{"no more than so many", ops(RunMax+1, drop), AcquireRelease, RunMax},
		{"renewals with more entries", []redisop.Op{keep, twice}, scriptOf(redisop.Renew), 1},
		{"permits, whatever their leases", []redisop.Op{permits, longPermits, permits, take}, Permits, 3},
		{"read/write locks, whatever their leases", []redisop.Op{shared, longShared, shared, permits}, ReadWrite, 3},
		{"locks before permits", []redisop.Op{take, permits}, AcquireRelease, 1},
		{"renewals of another lease", append(ops(3, keep), renewOp("a", 1), func() redisop.Op { op := keep; op.LeaseMS = 1; return op }()), scriptOf(redisop.Renew), 4},
	} {
		if s, n := BatchPrefix(tt.ops, nil); s != tt.script || n != tt.want {
			t.Errorf("%s: %d of them, want %d; the right script: %v", tt.says, n, tt.want, s == tt.script)
		}
	}
}

// A Drop and the Take that is pipelined after it are in one script, whatever else is sent with them.
func TestPairsAreInOneScript(t *testing.T) {
	var ops []redisop.Op
	for i := range uint64(300) {
		short := takeOp(fmt.Sprint("short", i), 1)
		short.LeaseMS = 100 + uint32(i%3)
		again := takeOp(fmt.Sprint("again", i), 2)
		again.Flags, again.LeaseMS = again.Flags|redisop.AfterPendingDrop, 30_000-uint32(i%2)
		ops = append(ops, short, dropOp(again.Name, 1), again, dropOp(fmt.Sprint("dropped", i), 1))
	}
	SortForBatching(0, ops, nil)
	for begin := 0; begin < len(ops); {
		_, n := BatchPrefix(ops[begin:], nil)
		run := ops[begin : begin+n]
		for i := range run {
			if run[i].Has(redisop.AfterPendingDrop) && !slices.ContainsFunc(run, func(op redisop.Op) bool { return op.Kind == redisop.Drop && op.Name == run[i].Name }) {
				t.Fatalf("the Take of %s is in another script than its Drop", run[i].Name)
			}
		}
		begin += n
	}
}

package history

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rules are the rules for a sidecar with a lease of 3 s.
var rules = Rules{
	Lease:  3 * time.Second,
	Outage: 1500 * time.Millisecond,
	Settle: 5 * time.Second,
	Wake:   2 * time.Second,
	Answer: time.Second,
	Errors: []string{"timeout", "unavailable"},
}

// A story is a history written by hand. Its times are in milliseconds.
type story []Event

func ns(ms int64) int64 { return ms*1e6 + 1e9 }

func clients() story {
	return story{
		{Kind: Start, At: ns(0), Client: "a", Host: "one"},
		{Kind: Start, At: ns(0), Client: "b", Host: "one"},
		{Kind: Start, At: ns(0), Client: "c", Host: "two"},
	}
}

func (s story) and(more ...story) story { return append(slices.Clone(s), slices.Concat(more...)...) }

// acquires returns the events of an acquire that is granted.
func acquires(client string, op, at, granted int64, token uint64, until int64) story {
	return story{
		{Kind: Invoke, At: ns(at), Client: client, Op: op, Lock: "L"},
		{Kind: Grant, At: ns(granted), Client: client, Op: op, Token: token, Until: ns(until)},
	}
}

// with returns the story with every event changed.
func (s story) with(change func(*Event)) story {
	changed := slices.Clone(s)
	for i := range changed {
		change(&changed[i])
	}
	return changed
}

func checks(client string, op, at, until int64) story {
	return story{{Kind: Checked, Before: ns(at), At: ns(at), Client: client, Op: op, Until: ns(until)}}
}

func releases(client string, op, at int64) story {
	return story{
		{Kind: Release, At: ns(at), Client: client, Op: op},
		{Kind: Released, At: ns(at + 1), Client: client, Op: op},
	}
}

func loses(client string, op, at int64, reason string) story {
	return story{{Kind: Lost, At: ns(at), Client: client, Op: op, Reason: reason}}
}

func fault(from, to int64, what string, effects ...Effect) story {
	return story{
		{Kind: Fault, At: ns(from), ID: int(from) + 1, Fault: what, Effects: effects},
		{Kind: Mended, At: ns(to), ID: int(from) + 1},
	}
}

func endsAt(at int64) story { return story{{Kind: End, At: ns(at)}} }

func writes(client string, op, at int64, token uint64, value string, answer Event) story {
	answer.Kind, answer.Client, answer.Op, answer.Token, answer.Value = Write, client, op, token, value
	answer.Before, answer.At = ns(at), ns(at+1)
	return story{answer}
}

// Correct locks may have each of these histories.
func TestCorrectHistoriesHaveNoViolation(t *testing.T) {
	for _, c := range []struct {
		what  string
		story story
	}{
		{"one client after the other", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), checks("a", 1, 30, 3000), releases("a", 1, 40),
			acquires("b", 1, 15, 41, 6, 3000), releases("b", 1, 50))},
		{"an answer is read late, after the next client was granted the lock", clients().and(
			acquires("a", 1, 10, 60, 5, 40).with(fixed),
			acquires("b", 1, 15, 50, 6, 3000), releases("b", 1, 70), loses("a", 1, 61, Expired))},
		{"a fixed lease ends", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), checks("a", 1, 499, 500), loses("a", 1, 501, Expired),
			acquires("b", 1, 15, 502, 6, 3000), releases("b", 1, 510))},
		{"a re-entry has the same token, and the hold ends with the last release", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(owned), acquires("a", 2, 21, 22, 5, 3000).with(owned),
			releases("a", 2, 30), releases("a", 1, 40),
			acquires("b", 1, 15, 41, 6, 3000), releases("b", 1, 50))},
		{"a killed client does not believe in its lock", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), story{{Kind: Kill, Before: ns(30), At: ns(31), Client: "a"}},
			acquires("b", 1, 15, 32, 6, 3000), releases("b", 1, 50))},
		{"after a flush two clients believe in it until the old deadline", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(100, 101, "flushall", LosesData),
			acquires("c", 1, 15, 120, 900, 3100), checks("a", 1, 130, 2900), loses("a", 1, 1000, Deleted),
			releases("c", 1, 1100))},
		{"after a flush another host hands over with a token drawn before", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(100, 101, "flushall", LosesData),
			acquires("c", 1, 15, 120, 900, 3100), releases("a", 1, 125),
			acquires("b", 1, 126, 127, 6, 2900), loses("b", 1, 1000, Deleted), releases("c", 1, 1100))},
		{"Redis does not answer for longer than a lease", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(500, 4500, "redis stopped", Interrupts), loses("a", 1, 2900, Expired),
			acquires("b", 1, 2950, 5000, 6, 8000), releases("b", 1, 5100))},
		{"a waiter waits while another client holds", clients().and(
			acquires("a", 1, 10, 20, 5, 30000), checks("a", 1, 9000, 30000),
			acquires("b", 1, 15, 10050, 6, 30000), releases("a", 1, 10000), releases("b", 1, 10060))},
		{"a waiter waits during a fault", clients().and(
			fault(10, 6000, "daemon killed", Interrupts),
			acquires("b", 1, 15, 9000, 6, 12000), releases("b", 1, 9010))},
		{"a stopped client has the lock and has not read the answer", clients().and(
			acquires("a", 1, 10, 9000, 5, 20000), story{
				{Kind: Stop, Before: ns(12), At: ns(13), Client: "a"}, {Kind: Cont, Before: ns(8998), At: ns(8999), Client: "a"}},
			acquires("b", 1, 20, 9020, 6, 20000), releases("a", 1, 9010), releases("b", 1, 9030))},
		{"writes in the order of tokens, and one that is refused", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), writes("a", 1, 30, 5, "x", Event{}), loses("a", 1, 600, Expired),
			acquires("b", 1, 15, 550, 6, 3000), writes("b", 1, 560, 6, "y", Event{PrevToken: 5, PrevValue: "x"}),
			writes("a", 1, 570, 5, "z", Event{Refused: true, PrevToken: 6, PrevValue: "y"}), releases("b", 1, 580))},
		{"a write of a client that was killed before it recorded it", clients().and(
			acquires("a", 1, 10, 20, 5, 500), story{{Kind: Kill, Before: ns(30), At: ns(31), Client: "a"},
				{Kind: Applied, Before: ns(29), At: ns(30), Lock: "L", Token: 5, Value: "x"}},
			acquires("b", 1, 15, 550, 6, 3000), writes("b", 1, 560, 6, "y", Event{PrevToken: 5, PrevValue: "x"}), releases("b", 1, 580))},
		{"waiters of one client in order", clients().and(
			acquires("a", 1, 10, 20, 5, 3000),
			acquires("a", 2, 11, 30, 6, 3000), acquires("a", 3, 12, 40, 7, 3000).with(func(e *Event) {
				if e.Kind == Invoke {
					e.AfterOp = 2
				}
			}),
			releases("a", 1, 25), releases("a", 2, 35), releases("a", 3, 45))},
		{"all permits are held, and then as many as the next request names", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(permits(2, 3)), acquires("b", 1, 10, 21, 6, 3000).with(permits(1, 3)),
			releases("a", 1, 30), acquires("c", 1, 15, 31, 7, 3000).with(permits(4, 5)),
			releases("b", 1, 40), releases("c", 1, 41))},
		{"two hosts have reserved tokens of a semaphore", clients().and(
			acquires("a", 1, 10, 20, 9, 3000).with(permits(2, 3)), releases("a", 1, 30),
			acquires("c", 1, 40, 50, 5, 3000).with(permits(2, 3)), releases("c", 1, 60))},
		{"permits of a killed client are held by the next one", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(permits(3, 3)), story{{Kind: Kill, Before: ns(30), At: ns(31), Client: "a"}},
			acquires("b", 1, 15, 31, 6, 3000).with(permits(3, 3)), releases("b", 1, 40))},
		{"after a flush a host hands permits on that Redis has lost", clients().and(
			acquires("a", 1, 10, 20, 5, 2900).with(permits(2, 2)), fault(100, 101, "flushall", LosesData), releases("a", 1, 200),
			acquires("b", 1, 199, 201, 900, 2900).with(permits(2, 2)), acquires("c", 1, 150, 202, 901, 3100).with(permits(2, 2)),
			loses("b", 1, 1000, Deleted), releases("c", 1, 1100))},
		{"a large request waits for more permits than are free", clients().and(
			acquires("a", 1, 10, 20, 5, 30000).with(permits(1, 3)), acquires("b", 1, 15, 9001, 6, 30000).with(permits(3, 3)),
			acquires("c", 1, 16, 9011, 7, 30000).with(permits(1, 3)),
			releases("a", 1, 9000), releases("b", 1, 9010), releases("c", 1, 9020))},
	} {
		t.Run(c.what, func(t *testing.T) {
			for _, v := range Check(c.story, rules).Violations {
				t.Error(v.Describe(ns(0)))
			}
		})
	}
}

func fixed(e *Event) {
	if e.Kind == Invoke {
		e.LeaseMS = 480
	}
}

func owned(e *Event) { e.Owner = 7 }

// permits makes an acquire one of n permits of a semaphore.
func permits(n, of int) func(*Event) { return func(e *Event) { e.Permits, e.Of = n, of } }

// Each of these histories breaks one rule, which the report names.
func TestBrokenRuleIsReported(t *testing.T) {
	for _, c := range []struct {
		what  string
		rule  string
		story story
	}{
		{"two clients believe in it at once", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), checks("a", 1, 60, 3000), releases("a", 1, 70),
			acquires("b", 1, 15, 50, 6, 3000), releases("b", 1, 80))},
		{"the second is granted it before the first one's deadline, without a check", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), loses("a", 1, 501, Expired),
			acquires("b", 1, 15, 499, 6, 3000), releases("b", 1, 510))},
		{"two owners in one process", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 70),
			acquires("a", 2, 15, 50, 6, 3000), releases("a", 2, 80))},
		{"two clients believe in it for longer than a lease after a flush", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 4000), fault(100, 101, "flushall", LosesData),
			acquires("c", 1, 15, 120, 900, 4000), checks("a", 1, 3200, 4000), loses("a", 1, 3300, Deleted),
			releases("c", 1, 3400))},
		{"two clients believed in it before the flush", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 4000), fault(100, 101, "flushall", LosesData),
			acquires("c", 1, 15, 90, 900, 4000), checks("a", 1, 130, 4000), loses("a", 1, 1000, Deleted),
			releases("c", 1, 1100))},
		{"a fault that loses no data excuses nothing", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(100, 101, "connection dropped", Interrupts),
			acquires("c", 1, 15, 120, 900, 3100), checks("a", 1, 130, 2900), releases("a", 1, 140), releases("c", 1, 1100))},
		{"the deletion of another lock excuses nothing", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(100, 101, "del", LosesData).with(func(e *Event) { e.Lock = "M" }),
			acquires("c", 1, 15, 120, 900, 3100), checks("a", 1, 130, 2900), releases("a", 1, 140), releases("c", 1, 1100))},
		{"a killed daemon's lock is granted again at once", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 2900), fault(100, 150, "daemon killed", Interrupts),
			acquires("b", 1, 15, 160, 6, 3100), checks("a", 1, 170, 2900), releases("a", 1, 180), releases("b", 1, 1100))},
		{"more permits than there are", "exclusion", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(permits(2, 4)), acquires("b", 1, 10, 21, 6, 3000).with(permits(2, 4)),
			acquires("c", 1, 15, 30, 7, 3000).with(permits(1, 4)),
			checks("a", 1, 60, 3000), releases("a", 1, 70), checks("b", 1, 60, 3000), releases("b", 1, 80), releases("c", 1, 80))},
		{"more permits than there are, longer than a lease after a flush", "exclusion", clients().and(
			fault(5, 6, "flushall", LosesData), acquires("a", 1, 10, 2990, 5, 6000).with(permits(2, 2)),
			acquires("c", 1, 15, 3000, 6, 6000).with(permits(1, 2)), checks("a", 1, 3020, 6000), releases("a", 1, 3030), releases("c", 1, 3040))},
		{"the same token twice", "tokens", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30), acquires("b", 1, 40, 50, 5, 3000), releases("b", 1, 80))},
		{"the same token twice, after a flush", "tokens", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30), fault(35, 36, "flushall", LosesData),
			acquires("c", 1, 40, 50, 5, 3000), releases("c", 1, 80))},
		{"the same token twice for one anonymous owner", "tokens", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30), acquires("a", 2, 40, 50, 5, 3000), releases("a", 2, 80))},
		{"a smaller token later", "tokens", clients().and(
			acquires("a", 1, 10, 20, 6, 3000), releases("a", 1, 30), acquires("b", 1, 40, 50, 5, 3000), releases("b", 1, 80))},
		{"a smaller token later, on the same host, after a flush", "tokens", clients().and(
			acquires("a", 1, 10, 20, 6, 3000), releases("a", 1, 30), fault(15, 16, "flushall", LosesData),
			acquires("b", 1, 40, 50, 5, 3000), releases("b", 1, 80))},
		{"a smaller token later, longer than a lease after the flush", "tokens", clients().and(
			fault(5, 6, "flushall", LosesData), acquires("a", 1, 10, 20, 6, 3000), releases("a", 1, 30),
			acquires("c", 1, 3040, 3050, 5, 6000), releases("c", 1, 3080))},
		{"a smaller token later, of permits of one host", "tokens", clients().and(
			acquires("a", 1, 10, 20, 6, 3000).with(permits(1, 3)), releases("a", 1, 30),
			acquires("b", 1, 40, 50, 5, 3000).with(permits(1, 3)), releases("b", 1, 80))},
		{"another token after a restart", "re-entry", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(owned), fault(21, 50, "daemon killed", Interrupts),
			acquires("a", 2, 60, 70, 6, 3000).with(owned), releases("a", 2, 80), checks("a", 1, 85, 3000), releases("a", 1, 90))},
		{"waiters of one client out of order", "order", clients().and(
			acquires("a", 2, 11, 40, 7, 3000), acquires("a", 3, 12, 30, 6, 3000).with(func(e *Event) {
				if e.Kind == Invoke {
					e.AfterOp = 2
				}
			}), releases("a", 3, 35), releases("a", 2, 45))},
		{"a belief after the deadline", "belief", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), checks("a", 1, 510, 500), loses("a", 1, 520, Expired))},
		{"a belief that comes back", "belief", clients().and(
			fault(15, 16, "del", LosesData),
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 30, Deleted), checks("a", 1, 40, 3000))},
		{"a belief after the release", "belief", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30), checks("a", 1, 40, 3000))},
		{"a loss that is never reported", "belief", clients().and(acquires("a", 1, 10, 20, 5, 3000), endsAt(9000))},
		{"a loss that is reported twice", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), loses("a", 1, 501, Expired), loses("a", 1, 502, Expired))},
		{"a loss that is reported with two reasons", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), loses("a", 1, 501, Expired),
			story{{Kind: Release, At: ns(510), Client: "a", Op: 1},
				{Kind: Released, At: ns(511), Client: "a", Op: 1, Err: LostErr, Reason: Deleted}})},
		{"a loss that is reported after the release", "lost", clients().and(
			fault(15, 16, "del", LosesData),
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30), loses("a", 1, 40, Deleted))},
		{"a lost lock is released without an error", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), loses("a", 1, 501, Expired), releases("a", 1, 510))},
		{"deleted, without a deletion", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 30, Deleted))},
		{"stolen, without a loss of data", "lost", clients().and(
			fault(25, 26, "connection dropped", Interrupts),
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 30, Stolen))},
		{"forced, without a forced release", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 30, Forced))},
		{"expired before the deadline", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), loses("a", 1, 499, Expired))},
		{"expired, and it should have been renewed", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 500), loses("a", 1, 501, Expired))},
		{"expired over a short restart of the daemon", "lost", clients().and(
			fault(100, 1000, "daemon killed", Interrupts),
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 3001, Expired))},
		{"max_hold too early", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 3000).with(func(e *Event) { e.MaxHoldMS = 100 }), loses("a", 1, 90, MaxHold))},
		{"max_hold without a max_hold", "lost", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 90, MaxHold))},
		{"forgotten before the deadline", "lost", clients().and(
			fault(100, 1000, "daemon killed", Interrupts),
			acquires("a", 1, 10, 20, 5, 3000), loses("a", 1, 1100, Forgotten))},
		{"a free lock is not granted", "wake-up", clients().and(
			acquires("a", 1, 10, 20, 5, 30000), releases("a", 1, 1000),
			acquires("b", 1, 15, 3100, 6, 30000), releases("b", 1, 3110))},
		{"a free lock is not granted after a fault", "wake-up", clients().and(
			fault(10, 11, "connection dropped", Interrupts),
			acquires("b", 1, 15, 7100, 6, 30000), releases("b", 1, 7110))},
		{"a dead client's lock is not freed", "wake-up", clients().and(
			acquires("a", 1, 10, 20, 5, 30000), story{{Kind: Kill, Before: ns(30), At: ns(31), Client: "a"}},
			acquires("b", 1, 15, 3000, 6, 30000), releases("b", 1, 3010))},
		{"free permits are not granted", "wake-up", clients().and(
			acquires("a", 1, 10, 20, 5, 30000).with(permits(1, 3)), acquires("b", 1, 15, 2100, 6, 30000).with(permits(2, 3)),
			releases("a", 1, 9000), releases("b", 1, 9010))},
		{"a waiter is never answered", "answer", clients().and(
			acquires("a", 1, 10, 20, 5, 30000), story{{Kind: Invoke, At: ns(30), Client: "b", Op: 1, Lock: "L"}}, releases("a", 1, 1000), endsAt(1100))},
		{"a limited wait takes longer", "answer", clients().and(
			acquires("a", 1, 10, 20, 5, 30000), releases("a", 1, 2000),
			acquires("b", 1, 15, 2010, 6, 30000).with(func(e *Event) { e.WaitMS = 100 }), releases("b", 1, 2020))},
		{"an error that the rules do not allow", "answer", clients().and(
			story{{Kind: Invoke, At: ns(10), Client: "a", Op: 1, Lock: "L"}, {Kind: Error, At: ns(20), Client: "a", Op: 1, Err: "other"}})},
		{"a release fails with an error that the rules do not allow", "answer", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), releases("a", 1, 30).with(func(e *Event) {
				if e.Kind == Released {
					e.Err = "not_held"
				}
			}))},
		{"the fence lets a smaller token pass", "register", clients().and(
			acquires("a", 1, 10, 20, 5, 500).with(fixed), writes("a", 1, 30, 5, "x", Event{}), loses("a", 1, 600, Expired),
			acquires("b", 1, 15, 550, 6, 3000), writes("b", 1, 560, 6, "y", Event{PrevToken: 5, PrevValue: "x"}),
			writes("a", 1, 570, 5, "z", Event{PrevToken: 6, PrevValue: "y"}), releases("b", 1, 580))},
		{"a write overlooks the one before", "register", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), writes("a", 1, 30, 5, "x", Event{}),
			writes("a", 1, 40, 5, "y", Event{}), releases("a", 1, 580))},
		{"a holder is refused", "register", clients().and(
			acquires("a", 1, 10, 20, 5, 3000), writes("a", 1, 30, 5, "x", Event{Refused: true, PrevToken: 6, PrevValue: "y"}), releases("a", 1, 580),
			story{{Kind: Applied, Before: ns(15), At: ns(16), Lock: "L", Token: 6, Value: "y"}})},
		{"a log that begins in the middle", "log", clients().and(releases("a", 1, 580))},
		{"a release of what was not granted", "log", clients().and(acquires("a", 1, 10, 20, 5, 3000)[:1], releases("a", 1, 580))},
	} {
		t.Run(c.what, func(t *testing.T) {
			report := Check(c.story, rules)
			found := map[string]bool{}
			for _, v := range report.Violations {
				found[v.Rule] = true
				if text := v.Describe(report.Begin); !strings.Contains(text, v.Rule) {
					t.Errorf("the description does not name the rule: %s", text)
				}
			}
			if !found[c.rule] {
				t.Errorf("it breaks the rule %q; found: %v", c.rule, report.Violations)
			}
		})
	}
}

func TestSmallerTokenIsReportedOnce(t *testing.T) {
	report := Check(clients().and(
		acquires("a", 1, 10, 20, 6, 3000), releases("a", 1, 30), acquires("b", 1, 40, 50, 5, 3000), releases("b", 1, 80)), rules)
	if len(report.Violations) != 1 {
		t.Errorf("found %d violations: %v", len(report.Violations), report.Violations)
	}
}

func TestReportCountsTheEventsOfAHistory(t *testing.T) {
	report := Check(clients().and(
		acquires("a", 1, 10, 20, 5, 3000), writes("a", 1, 30, 5, "x", Event{}), releases("a", 1, 40),
		acquires("b", 1, 15, 41, 6, 3000), releases("b", 1, 50),
		acquires("c", 1, 15, 60, 7, 500).with(fixed), loses("c", 1, 501, Expired),
		story{{Kind: Invoke, At: ns(70), Client: "a", Op: 2, Lock: "L", WaitMS: 10}, {Kind: Error, At: ns(80), Client: "a", Op: 2, Err: "timeout"}},
	), rules)
	if len(report.Violations) > 0 {
		t.Fatal(report.Violations)
	}
	got := fmt.Sprint(report.Acquires, report.Grants, report.Holds, report.Handovers, report.Crossings, report.Writes,
		report.Lost, report.Refused, report.LongestWait)
	if want := "4 3 3 2 1 1 map[expired:1] map[timeout:1] 45ms"; got != want {
		t.Errorf("counted %s, want %s", got, want)
	}
}

// Each piece begins with the final state of the one before.
func TestLongHistoryOfWritesIsCheckedInPieces(t *testing.T) {
	writesWith := func(wrong int) []Event {
		story := clients()
		prev := Event{}
		for i := range 4 * pieceSize {
			token, value := uint64(i/7+1), fmt.Sprint("v", i)
			if i%7 == 0 {
				story = append(story, acquires("a", int64(token), int64(10*i), int64(10*i+1), token, int64(10*i+3000))...)
			}
			answer := prev
			if i == wrong {
				answer = Event{PrevToken: 1, PrevValue: "v0"}
			}
			story = append(story, writes("a", int64(token), int64(10*i+2), token, value, answer)...)
			prev = Event{PrevToken: token, PrevValue: value}
			if i%7 == 6 || i == 4*pieceSize-1 {
				story = append(story, releases("a", int64(token), int64(10*i+5))...)
			}
		}
		return story
	}
	if v := Check(writesWith(-1), rules).Violations; len(v) > 0 {
		t.Error(v[0].Describe(ns(0)))
	}
	for _, wrong := range []int{pieceSize, pieceSize + 1, 3*pieceSize - 1} {
		v := Check(writesWith(wrong), rules).Violations
		if len(v) != 1 || v[0].Rule != "register" {
			t.Errorf("write %d is wrong; found %v", wrong, v)
		}
	}
}

// An incomplete last line is that of a process that was killed.
func TestLoadReadsWhatWasRecordedWithoutAnIncompleteLine(t *testing.T) {
	dir := t.TempDir()
	want := map[string]Event{}
	for _, name := range []string{"a", "b"} {
		r, err := Record(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		e := Event{Kind: Invoke, At: 5, Op: 1, Lock: "L " + name, WaitMS: 10}
		r.Write(e)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		e.Client = name
		want[name] = e
	}
	file, err := os.OpenFile(filepath.Join(dir, "a"+suffix), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"ev":"gra`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	events, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != 2 {
		t.Fatalf("read %d events", len(events))
	}
	for _, e := range events {
		if w := want[e.Client]; fmt.Sprint(w) != fmt.Sprint(e) {
			t.Errorf("wrote %+v, read %+v", w, e)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "c"+suffix), []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "c.jsonl:1") {
		t.Errorf("a file that is not a log: %v", err)
	}
}

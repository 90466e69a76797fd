package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

var messageCases = []struct {
	text string
	want redisop.Message // of kind Unlocked: the text is no message
	from string          // origin; "": the message names none
}{
	{"transfer:0123abcd 7 1700000000000032 32 30000 5 49 invoice:42", redisop.Message{Kind: redisop.Transferred, Name: "invoice:42",
		Ticket: 7, LastToken: 1700000000000032, Tokens: 32, LeaseMS: 30000, Waiting: 5, PassedMS: 49}, "0123abcd"},
	{"transfer 7 1700000000000032 32 30000 5 49 invoice:42", redisop.Message{Kind: redisop.Transferred, Name: "invoice:42",
		Ticket: 7, LastToken: 1700000000000032, Tokens: 32, LeaseMS: 30000, Waiting: 5, PassedMS: 49}, ""},
	{"transfer:- 9007199254740991 9007199254740991 128 2592000000 1048575 99 a", redisop.Message{Kind: redisop.Transferred, Name: "a",
		Ticket: 1<<53 - 1, LastToken: 1<<53 - 1, Tokens: 128, LeaseMS: 2592000000, Waiting: 1<<20 - 1, PassedMS: 99}, "-"},
	{"transfer 1 1 1 1 0 0  with  spaces ", redisop.Message{Kind: redisop.Transferred, Name: " with  spaces ", Ticket: 1, LastToken: 1, Tokens: 1, LeaseMS: 1}, ""},
	{"recall recall a", redisop.Message{Kind: redisop.Recalled, Name: "recall a"}, ""},
	{"recall:ffffffff recall:- a", redisop.Message{Kind: redisop.Recalled, Name: "recall:- a"}, "ffffffff"},
	{"free 10 a", redisop.Message{Kind: redisop.Freed, Name: "a", PauseMS: 10}, ""},
	{"free:00000000 0 10", redisop.Message{Kind: redisop.Freed, Name: "10"}, "00000000"},
	{"requeue ключ{1}", redisop.Message{Kind: redisop.Requeue, Name: "ключ{1}"}, ""},
	{"requeue 7 a", redisop.Message{Kind: redisop.Requeue, Name: "7 a"}, ""},
	{"requeue:- 7 a", redisop.Message{Kind: redisop.Requeue, Name: "a", Ticket: 7, NamesTicket: true}, "-"},
	{"admit:0123abcd p 7 3 1700000000000003 3 30000 5 api", redisop.Message{Kind: redisop.Admitted, Of: redisop.KindPermits, Name: "api",
		Ticket: 7, Units: 3, LastToken: 1700000000000003, Tokens: 3, LeaseMS: 30000, Waiting: 5}, "0123abcd"},
	{"admit p 7 65535 1700000000000003 65535 30000 0 p a", redisop.Message{Kind: redisop.Admitted, Of: redisop.KindPermits, Name: "p a",
		Ticket: 7, Units: 65535, LastToken: 1700000000000003, Tokens: 65535, LeaseMS: 30000}, ""},

	{"admit:0123abcd r 7 1 1700000000000003 1 30000 5 catalog", redisop.Message{Kind: redisop.Admitted, Of: redisop.KindReadWrite, Name: "catalog",
		Ticket: 7, Units: 1, LastToken: 1700000000000003, Tokens: 1, LeaseMS: 30000, Waiting: 5}, "0123abcd"},
	{"admit:- r 7 2 1700000000000003 128 30000 0 r a", redisop.Message{Kind: redisop.Admitted, Of: redisop.KindReadWrite, Name: "r a",
		Ticket: 7, Units: 2, LastToken: 1700000000000003, Tokens: 128, LeaseMS: 30000}, "-"},
	{"return:0123abcd r p a", redisop.Message{Kind: redisop.Recalled, Of: redisop.KindReadWrite, Name: "p a"}, "0123abcd"},

	{"return:0123abcd p p a", redisop.Message{Kind: redisop.Recalled, Of: redisop.KindPermits, Name: "p a"}, "0123abcd"},

	{text: ""},
	{text: "return:0123abcd w a"},
	{text: "return:0123abcd a"},
	{text: "admit:0123abcd w 7 3 1700000000000003 3 30000 5 api"},     // of a lock of another kind
	{text: "admit:0123abcd r 7 3 1700000000000003 1 30000 5 catalog"}, // a mode that there is not
	{text: "admit:0123abcd r 7 0 1700000000000003 1 30000 5 catalog"},
	{text: "admit:0123abcd r 7 2 1700000000000003 129 30000 5 catalog"},
	{text: "admit:0123abcd p 7 0 1700000000000003 3 30000 5 api"},
	{text: "admit:0123abcd p 7 65536 1700000000000003 3 30000 5 api"},
	{text: "admit:0123abcd p 7 3 2 3 30000 5 api"}, // more tokens than there are
	{text: "admit:0123abcd p 7 3 1700000000000003 3 0 5 api"},
	{text: "admit:0123abcd p 0 3 1700000000000003 3 30000 5 api"},
	{text: "admit:0123abcd p 7 3 1700000000000003 3 30000 5"},
	{text: " "},
	{text: "0"},
	{text: "a"},
	{text: "unlocked a"},
	{text: "Recall a"},
	{text: "recall"},
	{text: "recall "},
	{text: " recall a"},
	{text: "requeue"},
	{text: "free a"},
	{text: "free 10"},
	{text: "free 10 "},
	{text: "free  10 a"},
	{text: "free -1 a"},
	{text: "free 1.5 a"},
	{text: "transfer:- 7 7 1 30000 1048576 0 a"}, // more hosts than there are
	{text: "transfer:- 7 7 1 30000 0 100 a"},     // a script leaves such a lock free
	{text: "free 11 a"},                          // longer than a script has a lock left free
	{text: "free 4294967295 a"},
	{text: "free:0123abcd 4294967295 a"},
	{text: "recall: a"},
	{text: "recall:0123abc a"},
	{text: "recall:0123abcde a"},
	{text: "recall:0123ABCD a"},
	{text: "recall:0123abc- a"},
	{text: "recall:-- a"},
	{text: "recall:0123abcd:0123abcd a"},
	{text: "requeue:0123abcd a"},
	{text: "requeue:0123abcd 0 a"},
	{text: "requeue:0123abcd 9007199254740992 a"},
	{text: "0:0123abcd a"},
	{text: "transfer"},
	{text: "transfer 7 32 32 30000 5 49"},
	{text: "transfer 7 32 32 30000 5 49 "},
	{text: "transfer 7 32 32 30000 5 x a"},
	{text: "transfer +7 32 32 30000 5 49 a"},
	{text: "transfer 0 32 32 30000 5 49 a"},
	{text: "transfer 7 31 32 30000 5 49 a"},
	{text: "transfer 7 32 0 30000 5 49 a"},
	{text: "transfer 7 32 32 0 5 49 a"},
	{text: "transfer 7 129 129 30000 5 49 a"},
	{text: "transfer 9007199254740992 32 32 30000 5 49 a"},
	{text: "transfer 7 9007199254740992 32 30000 5 49 a"},
	{text: "transfer 7 32 32 2592000001 5 49 a"},
	{text: "transfer 7 32 32 30000 4294967296 49 a"},
	{text: "transfer 7 32 32 30000 5 4294967296 a"},
	{text: "transfer 18446744073709551616 32 32 30000 5 49 a"},
	{text: "recall " + strings.Repeat("x", protocol.MaxName+1)},
	{text: "recall a\x00"},
	{text: "recall \xff"},
}

// Shows docs/queue.md: Messages.
func TestMessagesOnTheChannelOfASidecar(t *testing.T) {
	for _, tt := range messageCases {
		for _, prefix := range []string{"", "app1:", "{app1}:"} {
			text := tt.text
			if tt.want.Name != "" { // the prefix is of the key, not of the message
				text = strings.TrimSuffix(text, tt.want.Name) + prefix + tt.want.Name
			}
			k := NewKeyspace(prefix)
			got, from, ok := k.Message(text)
			if got != tt.want || ok != (tt.want.Name != "") || from.IsKnown != (len(tt.from) == originDigits) || tt.from != "" && from.String() != tt.from {
				t.Errorf("%.80q, prefix %q: %+v from %v, %v; want %+v from %q", text, prefix, got, from, ok, tt.want, tt.from)
			}
		}
	}
}

// Sidecars with different key prefixes have one set of channels.
//
// Shows docs/queue.md: Messages.
func TestMessageForAnotherPrefixIsIgnored(t *testing.T) {
	k := NewKeyspace("app1:")
	for _, key := range []string{"a", "app2:a", "app1:", "app1"} {
		if m, _, ok := k.Message("recall " + key); ok {
			t.Errorf("key %q: %+v", key, m)
		}
	}
	k = NewKeyspace("")
	for _, name := range []string{"redisson_lock_token:{a}", "locksidecar_queue:{a}", "{locksidecar}:" + ourUUID} {
		if m, _, ok := k.Message("recall " + name); ok {
			t.Errorf("a reserved name: %+v", m)
		}
	}
	if got, want := OwnChannel(ourUUID), "redisson_lock__channel:{locksidecar}:"+ourUUID; got != want {
		t.Errorf("channel %q, want %q", got, want)
	}
}

// Whatever is published: no panic, and what was understood says what the text says.
//
// Shows docs/queue.md: Messages.
func FuzzMessages(f *testing.F) {
	for _, tt := range messageCases {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, from, ok := parseMessage(text)
		if !ok {
			if m != (redisop.Message{}) || from != (Origin{}) {
				t.Fatalf("refused, but %+v from %v", m, from)
			}
			return
		}
		// No message has what no script sends.
		if m.PauseMS > 10 || m.LeaseMS > protocol.MaxDurationMS || m.Tokens > max(128, m.Units) || max(m.Ticket, m.LastToken) >= 1<<53 ||
			uint64(m.Tokens) > m.LastToken || m.Conn != (redisop.Conn{}) {
			t.Fatalf("%q is %+v", text, m)
		}
		word, numbers := "recall", ""
		kind := map[redisop.LockKind]string{redisop.KindPermits: "p", redisop.KindReadWrite: "r"}[m.Of]
		switch m.Kind {
		case redisop.Transferred:
			word, numbers = "transfer", fmt.Sprintf(" %d %d %d %d %d %d", m.Ticket, m.LastToken, m.Tokens, m.LeaseMS, m.Waiting, m.PassedMS)
		case redisop.Admitted:
			word, numbers = "admit", fmt.Sprintf(" %s %d %d %d %d %d %d", kind, m.Ticket, m.Units, m.LastToken, m.Tokens, m.LeaseMS, m.Waiting)
		case redisop.Recalled:
			if kind != "" {
				word, numbers = "return", " "+kind
			}
		case redisop.Freed:
			word, numbers = "free", fmt.Sprintf(" %d", m.PauseMS)
		case redisop.Requeue:
			word = "requeue"
			if m.NamesTicket {
				numbers = fmt.Sprintf(" %d", m.Ticket)
			}
		}
		if from.IsKnown || m.NamesTicket {
			word += ":" + from.String()
		}
		again := word + numbers + " " + m.Name
		if n, same, ok := parseMessage(again); !ok || n != m || same != from {
			t.Fatalf("%q is %+v from %v; %q is %+v from %v, %v", text, m, from, again, n, same, ok)
		}
	})
}

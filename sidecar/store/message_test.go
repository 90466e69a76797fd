package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

var messageCases = []struct {
	text string
	want locktable.Message // of kind Unlocked: the text is no message
}{
	{"transfer 7 1700000000000032 32 30000 5 49 invoice:42", locktable.Message{Kind: locktable.Transferred, Name: "invoice:42",
		Ticket: 7, LastToken: 1700000000000032, Tokens: 32, LeaseMS: 30000, Waiting: 5, PassedMS: 49}},
	{"transfer 18446744073709551615 65535 65535 4294967295 4294967295 4294967295 a", locktable.Message{Kind: locktable.Transferred, Name: "a",
		Ticket: 1<<64 - 1, LastToken: 65535, Tokens: 65535, LeaseMS: 1<<32 - 1, Waiting: 1<<32 - 1, PassedMS: 1<<32 - 1}},
	{"transfer 1 1 1 1 0 0  with  spaces ", locktable.Message{Kind: locktable.Transferred, Name: " with  spaces ", Ticket: 1, LastToken: 1, Tokens: 1, LeaseMS: 1}},
	{"recall recall a", locktable.Message{Kind: locktable.Recalled, Name: "recall a"}},
	{"free 10 a", locktable.Message{Kind: locktable.Freed, Name: "a", PauseMS: 10}},
	{"free 0 10", locktable.Message{Kind: locktable.Freed, Name: "10"}},
	{"requeue ключ{1}", locktable.Message{Kind: locktable.Requeue, Name: "ключ{1}"}},

	{text: ""},
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
	{text: "free 4294967296 a"},
	{text: "transfer"},
	{text: "transfer 7 32 32 30000 5 49"},
	{text: "transfer 7 32 32 30000 5 49 "},
	{text: "transfer 7 32 32 30000 5 x a"},
	{text: "transfer +7 32 32 30000 5 49 a"},
	{text: "transfer 0 32 32 30000 5 49 a"},
	{text: "transfer 7 31 32 30000 5 49 a"},
	{text: "transfer 7 32 0 30000 5 49 a"},
	{text: "transfer 7 32 32 0 5 49 a"},
	{text: "transfer 7 65536 65536 30000 5 49 a"},
	{text: "transfer 18446744073709551616 32 32 30000 5 49 a"},
	{text: "recall " + strings.Repeat("x", protocol.MaxName+1)},
	{text: "recall a\x00"},
	{text: "recall \xff"},
}

func TestMessagesOnTheChannelOfASidecar(t *testing.T) {
	for _, tt := range messageCases {
		for _, prefix := range []string{"", "app1:", "{app1}:"} {
			text := tt.text
			if tt.want.Name != "" { // the prefix is of the key, not of the message
				text = strings.TrimSuffix(text, tt.want.Name) + prefix + tt.want.Name
			}
			k := newKeyspace(prefix)
			got, ok := k.message(text)
			if got != tt.want || ok != (tt.want.Name != "") {
				t.Errorf("%.80q, prefix %q: %+v, %v; want %+v", text, prefix, got, ok, tt.want)
			}
		}
	}
}

// Sidecars with different key prefixes have one set of channels.
func TestMessageForAnotherPrefixIsIgnored(t *testing.T) {
	k := newKeyspace("app1:")
	for _, key := range []string{"a", "app2:a", "app1:", "app1"} {
		if m, ok := k.message("recall " + key); ok {
			t.Errorf("key %q: %+v", key, m)
		}
	}
	if got, want := ownChannel(ourUUID), "redisson_lock__channel:{locksidecar}:"+ourUUID; got != want {
		t.Errorf("channel %q, want %q", got, want)
	}
}

// Whatever is published: no panic, and what was understood says what the text says.
func FuzzMessages(f *testing.F) {
	for _, tt := range messageCases {
		f.Add(tt.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, ok := parseMessage(text)
		if !ok {
			if m != (locktable.Message{}) {
				t.Fatalf("refused, but %+v", m)
			}
			return
		}
		words := map[locktable.MessageKind]string{
			locktable.Transferred: fmt.Sprint("transfer ", m.Ticket, m.LastToken, m.Tokens, m.LeaseMS, m.Waiting, m.PassedMS),
			locktable.Recalled:    "recall",
			locktable.Freed:       fmt.Sprint("free ", m.PauseMS),
			locktable.Requeue:     "requeue",
		}
		again := words[m.Kind] + " " + m.Name
		if n, ok := parseMessage(again); !ok || n != m {
			t.Fatalf("%q is %+v; %q is %+v, %v", text, m, again, n, ok)
		}
	})
}

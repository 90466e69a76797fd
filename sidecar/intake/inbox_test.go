package intake

import (
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// event is the name of a result.
type event string

func published(kind redisop.MessageKind, names ...string) (messages []redisop.Message) {
	for _, name := range names {
		messages = append(messages, redisop.Message{Kind: kind, Name: name})
	}
	return messages
}

// A message that came after a result may say more than it, and the other way round.
func TestMessagesAndResultsStayInOrder(t *testing.T) {
	b := New[event, request]()
	b.AddMessages(published(redisop.Unlocked, "a", "b"))
	b.AddMessages(published(redisop.Recalled, "a"))
	b.AddEvent("c")
	b.AddEvent("d")
	b.AddMessages(published(redisop.Unlocked, "a"))
	b.AddEvent("e")
	var got []string
	for _, e := range b.SwapEvents(nil) {
		if e.Other != "" {
			got = append(got, "result "+string(e.Other))
		}
		for _, m := range e.Messages {
			got = append(got, fmt.Sprint("message ", m.Kind, m.Name))
		}
	}
	want := []string{"message 0a", "message 0b", "message 2a", "result c", "result d", "message 0a", "result e"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if b.HasInput() {
		t.Error("the inbox is not empty")
	}
}

// Any program can publish as much as it likes while a step runs. What waits for the next step
// is bounded, and no message is left out of which none waits.
func TestMessagesThatWaitAreBounded(t *testing.T) {
	b := New[event, request]()
	flood := func() {
		for range 10 * maxUnlocked {
			b.AddMessages(published(redisop.Unlocked, "a", "b"))
		}
		for range maxOwnMessages/1000 + 1 {
			b.AddMessages(slices.Repeat(published(redisop.Recalled, "c"), 1000))
		}
	}
	count := func() (events int, byName map[string]int) {
		byName = make(map[string]int)
		all := b.SwapEvents(nil)
		for _, e := range all {
			for _, m := range e.Messages {
				byName[m.Name]++
			}
		}
		return len(all), byName
	}
	flood()
	if events, got := count(); events != 1 || got["a"] != maxUnlocked || got["b"] != maxUnlocked || got["c"] != maxOwnMessages {
		t.Errorf("%d events with %v messages", events, got)
	}
	flood()
	b.AddEvent("result")
	b.AddMessages(published(redisop.Unlocked, "a", "d"))
	if events, got := count(); events != 3 || got["a"] != maxUnlocked+1 || got["d"] != 1 || got["c"] != maxOwnMessages {
		t.Errorf("%d events with %v messages: a lock that was released after a result needs its message", events, got)
	}
}

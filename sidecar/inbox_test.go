package sidecar

import (
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func published(kind redisop.MessageKind, names ...string) (messages []redisop.Message) {
	for _, name := range names {
		messages = append(messages, redisop.Message{Kind: kind, Name: name})
	}
	return messages
}

// A message that came after a result may say more than it, and the other way round.
func TestMessagesAndResultsStayInOrder(t *testing.T) {
	var b inbox
	b.init()
	result := func(name string) event {
		return event{kind: redisResults, results: []redisop.Result{{Name: name}}}
	}
	b.addMessages(published(redisop.Unlocked, "a", "b"))
	b.addMessages(published(redisop.Recalled, "a"))
	b.addEvent(result("c"))
	b.addEvent(result("d"))
	b.addMessages(published(redisop.Unlocked, "a"))
	b.addEvent(result("e"))
	var got []string
	for _, e := range b.swapEvents(nil) {
		for _, r := range e.results {
			got = append(got, "result "+r.Name)
		}
		for _, m := range e.messages {
			got = append(got, fmt.Sprint("message ", m.Kind, m.Name))
		}
	}
	want := []string{"message 0a", "message 0b", "message 2a", "result c", "result d", "message 0a", "result e"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if b.hasInput() {
		t.Error("the inbox is not empty")
	}
}

// Any program can publish as much as it likes while a step runs. What waits for the next step
// is bounded, and no message is left out of which none waits.
func TestMessagesThatWaitAreBounded(t *testing.T) {
	var b inbox
	b.init()
	flood := func() {
		for range 10 * maxUnlocked {
			b.addMessages(published(redisop.Unlocked, "a", "b"))
		}
		for range maxOwnMessages/1000 + 1 {
			b.addMessages(slices.Repeat(published(redisop.Recalled, "c"), 1000))
		}
	}
	count := func() (events int, byName map[string]int) {
		byName = make(map[string]int)
		all := b.swapEvents(nil)
		for _, e := range all {
			for _, m := range e.messages {
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
	b.addEvent(event{kind: redisResults})
	b.addMessages(published(redisop.Unlocked, "a", "d"))
	if events, got := count(); events != 3 || got["a"] != maxUnlocked+1 || got["d"] != 1 || got["c"] != maxOwnMessages {
		t.Errorf("%d events with %v messages: a lock that was released after a result needs its message", events, got)
	}
}

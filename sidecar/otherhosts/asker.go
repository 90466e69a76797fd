package otherhosts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// maxQuestions bounds the questions of all clients that have no answer. An answer has at most some 20 KiB.
const maxQuestions = 256

// asker has the questions of clients to other hosts.
type asker struct {
	mu      sync.Mutex               // guards what follows
	waiting map[uint64]chan<- []byte // by number: where the answer goes
	byUser  map[int64]int            // questions of each user
	total   int
}

// begin reserves room for a question of a user. The caller ends it with end.
func (a *asker) begin(uid int64) *protocol.Err {
	a.mu.Lock()
	defer a.mu.Unlock()
	unreserved, share := peers.Shares(uid, maxQuestions)
	if a.total >= unreserved || a.byUser[uid] >= share {
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("clients of this sidecar wait for %d answers of other hosts, user %d for %d of them; try again in a moment", a.total, uid, a.byUser[uid])}
	}
	if a.byUser == nil {
		a.byUser, a.waiting = make(map[int64]int), make(map[uint64]chan<- []byte)
	}
	a.total++
	a.byUser[uid]++
	return nil
}

func (a *asker) end(uid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.byUser[uid]--; a.byUser[uid] == 0 {
		delete(a.byUser, uid)
	}
}

// expect returns the number of a new question, and where its answer comes. Numbers are random, so
// that a program that cannot read questions cannot answer them either.
func (a *asker) expect() (number uint64, answer <-chan []byte) {
	number = uint64(rand.Int64N(math.MaxInt64-1)) + 1
	c := make(chan []byte, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[number] = c
	return number, c
}

func (a *asker) forget(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, number)
}

// answer takes in what was published as an answer.
func (a *asker) answer(body []byte) {
	var d protocol.ReplyDecoder
	got, err := d.Decode(body)
	if err != nil {
		return
	}
	number := uint64(0)
	switch m := got.(type) {
	case *protocol.Answer:
		number = m.ID
	case *protocol.Err:
		number = m.ID
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.waiting[number]; c != nil {
		delete(a.waiting, number)
		c <- body
	}
}

// OnAnswer takes in what was published as an answer of another sidecar.
func (h *Hosts) OnAnswer(body []byte) { h.asker.answer(body) }

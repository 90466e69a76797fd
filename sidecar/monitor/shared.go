package monitor

import "sync"

// shared makes one answer for all requests that wait for one. However many readers ask at a time,
// each receives an answer that was begun after it had asked, and two answers are made.
type shared struct {
	pacer *pacer
	work  func() answer

	mu   sync.Mutex
	next *pending // an answer that is not begun; nil: there is none
}

type pending struct {
	answer answer
	done   chan struct{} // closed when there is the answer
}

// answer is a text in parts, or why there is none.
type answer struct {
	texts []string
	why   string // "": there is a text
}

// get returns an answer that was begun after the call.
func (s *shared) get() answer {
	s.mu.Lock()
	p := s.next
	if p != nil {
		s.mu.Unlock()
		<-p.done
		return p.answer
	}
	p = &pending{done: make(chan struct{})}
	s.next = p
	s.mu.Unlock()
	defer close(p.done)
	s.pacer.do(func() {
		s.mu.Lock()
		s.next = nil
		s.mu.Unlock()
		p.answer = s.work()
	})
	return p.answer
}

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

// sharedByKey makes one answer for all requests that wait for the one with the same key. It keeps
// nothing of a key that no request waits for: a reader chooses the keys.
type sharedByKey struct {
	mu sync.Mutex
	of map[string]*awaited
}

// awaited is the answer with one key, and how many requests wait for it.
type awaited struct {
	shared
	requests int
}

// get returns an answer that was begun after the call, by the work of this call or of one with the same key.
func (s *sharedByKey) get(key string, p *pacer, work func() answer) answer {
	s.mu.Lock()
	a := s.of[key]
	if a == nil {
		if a = (&awaited{shared: shared{pacer: p, work: work}}); s.of == nil {
			s.of = make(map[string]*awaited)
		}
		s.of[key] = a
	}
	a.requests++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.requests--; a.requests == 0 {
			delete(s.of, key)
		}
	}()
	return a.shared.get()
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

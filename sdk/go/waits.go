package locksidecar

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// waitWatch warns in the log if an acquire waits because Redis does not serve. It looks at the
// acquires without an answer once a period, while there are any. Guarded by session.mu.
type waitWatch struct {
	timer     *time.Timer // nil: no acquire was sent yet
	isRunning bool
	grants    int // that were received
	hasWarned bool
	warnedAt  int // how many grants there had been
}

const (
	watchPeriod = time.Second

	// slowLooks is after how many looks the sidecar is asked why an acquire waits; then after
	// twice as many.
	slowLooks = 2

	// askPatience is how long its answer is waited for.
	askPatience = 2 * time.Second
)

// startWatchLocked has the acquires watched from now on.
func (s *session) startWatchLocked() {
	w := &s.waits
	w.isRunning = true
	period := cmp.Or(s.dialer.watchPeriod, watchPeriod)
	if w.timer == nil {
		w.timer = time.AfterFunc(period, s.watchWaits)
		return
	}
	w.timer.Reset(period)
}

// stop ends the watch with the session.
func (w *waitWatch) stop() {
	w.isRunning = true // it is not started again
	if w.timer != nil {
		w.timer.Stop()
	}
}

// watchWaits is one look.
func (s *session) watchWaits() {
	s.mu.Lock()
	w := &s.waits
	if !s.isOpen() {
		s.mu.Unlock()
		return
	}
	slow := "" // the name of a lock
	isWaiting := false
	for _, c := range s.calls {
		if c.kind != acquireCall || c.phase == callAbandoned {
			continue
		}
		isWaiting = true
		if c.looks++; c.looks >= slowLooks && c.looks&(c.looks-1) == 0 {
			slow = c.task.name
		}
	}
	if w.isRunning = false; isWaiting {
		s.startWatchLocked()
	}
	grants := w.grants
	isDue := slow != "" && w.mayWarn(grants) && s.phase.get() == sessionServing
	s.mu.Unlock()
	if isDue {
		s.explainWait(slow, grants)
	}
}

// mayWarn reports whether no lock was granted since there were so many grants, and that was not
// logged yet.
func (w *waitWatch) mayWarn(grants int) bool {
	return w.grants == grants && (!w.hasWarned || w.warnedAt != grants)
}

// explainWait asks the sidecar how Redis is, and logs it if Redis does not serve, or if the
// sidecar does not answer. It runs on a goroutine of its own: that of the timer.
func (s *session) explainWait(name string, grants int) {
	ctx, cancel := context.WithTimeout(context.Background(), askPatience)
	defer cancel()
	var ok protocol.PingOK
	err := s.ask(ctx, newCall(queryCall, task{"ping the sidecar", ""}, &ok, func(id uint64) protocol.Request {
		return protocol.Ping{ID: id}
	}))
	if err == nil && ok.Redis == "ok" {
		return // other owners have the lock
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrUnavailable) {
		return // it answered, for instance that a policy permits no more requests
	}
	s.mu.Lock()
	mayWarn := s.isOpen() && s.waits.mayWarn(grants)
	if mayWarn {
		s.waits.hasWarned, s.waits.warnedAt = true, grants
	}
	s.mu.Unlock()
	if !mayWarn {
		return
	}
	log := cmp.Or(s.dialer.log, slog.Default())
	if err != nil {
		log.Warn("an acquire waits, and the sidecar does not answer", "lock", name, "socket", s.dialer.path, "err", err)
		return
	}
	log.Warn("an acquire waits, because Redis does not serve", "lock", name, "redis", ok.Redis, "address", ok.RedisAddress, "socket", s.dialer.path)
}

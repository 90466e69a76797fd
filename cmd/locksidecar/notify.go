package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// statusInterval is how often the service manager is told what is wrong with
// Redis, if it set no watchdog.
const statusInterval = 5 * time.Second

// served is what the notifier wants to know of a running server.
type served interface {
	Ping(context.Context) error
	Redis() string
	RedisServer() string
	Trouble() (why string, restart bool)
}

// notifier tells the service manager how the daemon is. Without one it does
// nothing, not even wake up.
type notifier struct {
	log      *slog.Logger
	send     func(state string) (listening bool, err error)
	watchdog time.Duration // 0: none
	status   string        // the last one sent
}

func newNotifier(log *slog.Logger) *notifier {
	n := &notifier{
		log:  log,
		send: func(state string) (bool, error) { return daemon.SdNotify(false, state) },
	}
	var err error
	if n.watchdog, err = daemon.SdWatchdogEnabled(false); err != nil {
		log.Warn("no watchdog: the service manager's setting is not valid", "err", err)
	}
	return n
}

// run says READY when a request has gone through the server's loop, then keeps
// status and watchdog up to date, and says STOPPING when ctx ends.
func (n *notifier) run(ctx context.Context, s served) {
	if err := s.Ping(ctx); err != nil {
		return // stopped before it served
	}
	if !n.tell(daemon.SdNotifyReady) {
		return
	}
	defer n.tell(daemon.SdNotifyStopping)
	interval := statusInterval
	if n.watchdog > 0 {
		interval = n.watchdog / 2
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		n.tellStatus(s)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if n.watchdog > 0 && n.alive(ctx, s, interval) {
			n.tell(daemon.SdNotifyWatchdog)
		}
	}
}

// alive goes through the loop, because that is what must not hang. A daemon that
// fails is not reported: silence makes the service manager restart it. So does one that
// clients cannot reach, if a restart gives it the right socket.
func (n *notifier) alive(ctx context.Context, s served, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, restart := s.Trouble(); restart {
		return false
	}
	return s.Ping(ctx) == nil
}

func (n *notifier) tellStatus(s served) {
	status := "STATUS=Serving. Redis: " + s.Redis()
	if s.Redis() == "ok" {
		status += " (" + s.RedisServer() + ")"
	}
	if why, _ := s.Trouble(); why != "" {
		status = "STATUS=In trouble: " + why + ". Redis: " + s.Redis()
	}
	if status != n.status && n.tell(status) {
		n.status = status
	}
}

// tell returns false if nobody listens.
func (n *notifier) tell(state string) bool {
	listening, err := n.send(state)
	if err != nil {
		n.log.Warn("cannot notify the service manager", "state", state, "err", err)
	}
	return listening && err == nil
}

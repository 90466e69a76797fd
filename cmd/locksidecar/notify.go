package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// statusInterval is how often the notifier looks for trouble if the service manager has
// set no watchdog. A change of Redis is reported at once.
const statusInterval = 5 * time.Second

// serverStatus is what the notifier reads from a running server.
type serverStatus interface {
	Ping(context.Context) error
	Redis() string
	RedisChanged() <-chan struct{}
	RedisServer() string
	Trouble() (why string, restart bool)
}

// notifier sends readiness, status and watchdog messages to the service manager
// (sd_notify(3)). Without a service manager it does nothing and has no timer.
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

// run sends READY when a request has passed through the server's loop, then status and
// watchdog messages, and STOPPING when ctx ends.
func (n *notifier) run(ctx context.Context, s serverStatus) {
	if err := s.Ping(ctx); err != nil {
		return // stopped before it served
	}
	if !n.notify(daemon.SdNotifyReady) {
		return
	}
	defer n.notify(daemon.SdNotifyStopping)
	interval := statusInterval
	if n.watchdog > 0 {
		interval = n.watchdog / 2
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		n.notifyStatus(s)
		select {
		case <-ctx.Done():
			return
		case <-s.RedisChanged():
			continue
		case <-tick.C:
		}
		if n.watchdog > 0 && n.isAlive(ctx, s, interval) {
			n.notify(daemon.SdNotifyWatchdog)
		}
	}
}

// isAlive reports whether the server's loop answers within limit. If it does not, run sends
// no watchdog message, and the service manager restarts the daemon. The same holds for a
// daemon that clients cannot reach, if a restart would give it the right socket.
func (n *notifier) isAlive(ctx context.Context, s serverStatus, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, restart := s.Trouble(); restart {
		return false
	}
	return s.Ping(ctx) == nil
}

func (n *notifier) notifyStatus(s serverStatus) {
	status := "STATUS=Serving. Redis: " + s.Redis()
	if s.Redis() == "ok" {
		status += " (" + s.RedisServer() + ")"
	}
	if why, _ := s.Trouble(); why != "" {
		status = "STATUS=In trouble: " + why + ". Redis: " + s.Redis()
	}
	if status != n.status && n.notify(status) {
		n.status = status
	}
}

// notify sends a message; false: there is no service manager, or the message failed.
func (n *notifier) notify(state string) bool {
	listening, err := n.send(state)
	if err != nil {
		n.log.Warn("cannot notify the service manager", "state", state, "err", err)
	}
	return listening && err == nil
}

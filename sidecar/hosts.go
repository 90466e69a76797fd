package sidecar

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/settings"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// OtherHosts is what a sidecar shows to the sidecars of other hosts, and does for them.
type OtherHosts string

const (
	// OtherHostsNone: it publishes nothing of itself, and neither asks nor answers other sidecars.
	OtherHostsNone OtherHosts = "none"

	// OtherHostsShow: it publishes the name of its host, and shows its locks, holders and waiters.
	OtherHostsShow OtherHosts = "show"

	// OtherHostsForceRelease: it also ends holds when another sidecar requests it.
	OtherHostsForceRelease OtherHosts = "force-release"
)

// setHostDefaults checks the settings about other hosts.
func (c *Config) setHostDefaults() error {
	or(&c.OtherHosts, OtherHostsShow)
	switch c.OtherHosts {
	case OtherHostsNone, OtherHostsShow, OtherHostsForceRelease:
	default:
		return settings.Refuse("other_hosts", fmt.Errorf("other-hosts %q: choose %s, %s or %s", c.OtherHosts, OtherHostsNone, OtherHostsShow, OtherHostsForceRelease))
	}
	if c.HostName == "" {
		c.HostName, _ = os.Hostname()
		if store.CheckHostName(c.HostName) != "" || c.HostName == "" {
			c.HostName = "unnamed"
		}
	}
	if why := store.CheckHostName(c.HostName); why != "" {
		return settings.Refuse("host_name", fmt.Errorf("host-name %q: %s", c.HostName, why))
	}
	return nil
}

// announce publishes what this sidecar is, whenever Redis can be reached again, and now and then.
func (s *Server) announce(stop <-chan struct{}) {
	if s.cfg.OtherHosts == OtherHostsNone {
		return
	}
	tick := time.NewTicker(store.HostInterval)
	defer tick.Stop()
	started := time.Now().Add(-time.Duration(protocol.Now() - s.startedAt))
	h := store.Host{Name: s.cfg.HostName, Version: s.cfg.Version, PID: int64(os.Getpid()), Started: started.UnixMilli()}
	for {
		select {
		case <-stop:
			return
		case <-s.redisIsUp:
		case <-tick.C:
		}
		s.store.Announce(h)
	}
}

// hostNames has the names of the hosts of other sidecars, by uuid. The lock table reads them for
// its messages, which do not wait for Redis: a name that is not known is looked up for the next
// message.
type hostNames struct {
	lookUp func(uuid string, done func(h store.Host, known bool, err error))

	mu    sync.Mutex // guards what follows
	names map[string]*hostName
}

type hostName struct {
	name     string // "": not known
	lookedUp int64  // CLOCK_BOOTTIME, ns
}

const (
	// A name is looked up again after so long when it is needed; one that was not found earlier,
	// because its sidecar may just have started. A foreign client has none.
	nameRefresh = 10 * time.Minute
	nameRetry   = 30 * time.Second

	// So many names are kept.
	maxHostNames = 4096
)

// of returns the name of the host whose sidecar has an owner field; "": it is not known yet, or
// there is none.
func (n *hostNames) of(field string) string {
	uuid, _, ok := strings.Cut(field, ":")
	if !ok || len(uuid) != 36 {
		return ""
	}
	now := protocol.Now()
	n.mu.Lock()
	h := n.names[uuid]
	if h == nil {
		if n.names == nil || len(n.names) >= maxHostNames {
			n.names = make(map[string]*hostName)
		}
		h = &hostName{lookedUp: now - int64(nameRefresh)}
		n.names[uuid] = h
	}
	name, wait := h.name, nameRefresh
	if name == "" {
		wait = nameRetry
	}
	isDue := now-h.lookedUp >= int64(wait)
	if isDue {
		h.lookedUp = now
	}
	n.mu.Unlock()
	if isDue {
		n.lookUp(uuid, func(found store.Host, known bool, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			switch {
			case known:
				h.name = found.Name
			case err != nil:
				h.lookedUp = now - int64(nameRefresh) // Redis was away: at the next message
			}
		})
	}
	return name
}

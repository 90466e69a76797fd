package otherhosts

import (
	"os"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

// Announce publishes what this sidecar is until stop is closed: whenever Redis can be reached again, and now and then.
func (h *Hosts) Announce(stop, redisIsUp <-chan struct{}, version string, startedAt int64) {
	if h.cfg.Setting == None {
		return
	}
	tick := time.NewTicker(lookup.HostInterval)
	defer tick.Stop()
	started := time.Now().Add(-time.Duration(protocol.Now() - startedAt))
	own := lookup.Host{Name: h.cfg.HostName, Version: version, PID: int64(os.Getpid()), Started: started.UnixMilli()}
	for {
		select {
		case <-stop:
			return
		case <-redisIsUp:
		case <-tick.C:
		}
		h.Store.Announce(own)
	}
}

// NameOf returns the name of the host whose sidecar has an owner field; "": it is not known, or no sidecar
// has it.
func (h *Hosts) NameOf(field string) string {
	if h.cfg.Setting == None {
		return ""
	}
	return h.names.of(field)
}

// names has the names of the hosts of other sidecars, by uuid. The lock table reads them for
// its messages, which do not wait for Redis: a name that is not known is looked up for the next
// message.
type names struct {
	lookUp func(uuid string, done func(h lookup.Host, known bool, err error))

	mu     sync.Mutex // guards what follows
	byUUID map[string]*hostName
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
func (n *names) of(field string) string {
	uuid, _, ok := strings.Cut(field, ":")
	if !ok || len(uuid) != 36 {
		return ""
	}
	now := protocol.Now()
	n.mu.Lock()
	h := n.byUUID[uuid]
	if h == nil {
		if n.byUUID == nil || len(n.byUUID) >= maxHostNames {
			n.byUUID = make(map[string]*hostName)
		}
		h = &hostName{lookedUp: now - int64(nameRefresh)}
		n.byUUID[uuid] = h
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
		n.lookUp(uuid, func(found lookup.Host, known bool, err error) {
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

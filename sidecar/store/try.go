package store

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Found is what Try found.
type Found struct {
	Address string // of Redis, and the number of the database
	RunID   string // of the server, or the smallest id of the nodes of a Cluster; "": it is not known
	Risk    string // as Risk has it; of a Cluster, that of one master

	// Of a Cluster:
	Nodes   map[string]bool  // the ids of all nodes
	Masters []string         // the addresses of those that have slots
	Down    map[string]error // why a master cannot be used, by address; "": some slots have no master
}

// tryAgain is the time between two attempts of Try.
const tryAgain = 200 * time.Millisecond

// Try connects to Redis as a Store would, and ends the connection. It tries again until ctx ends. Of a
// Cluster, it connects to each master, and it fails if it reached none. If it reached some, it ends at once if
// that is enough.
func Try(ctx context.Context, cfg Config, isEnough func(*Found) bool) (Found, error) {
	cfg.UUID = uuid.NewString() // a channel of its own
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	d, err := link.Parse(cfg.settings())
	if err != nil {
		return Found{}, err
	}
	try := func() (Found, error) { return tryCluster(ctx, cfg, d) }
	if d.Nodes == nil {
		trial := link.NewTrial(d)
		defer trial.Close()
		try = func() (found Found, err error) {
			found.Address, found.RunID, found.Risk, err = trial.Try(ctx)
			return found, err
		}
	}
	var part Found // some masters of a Cluster
	for {
		found, failed := try()
		if failed == nil && (len(found.Down) == 0 || isEnough(&found)) {
			return found, nil
		}
		// An attempt that the end of ctx cut explains nothing. The network notices a deadline
		// before ctx does.
		deadline, bounded := ctx.Deadline()
		cut := ctx.Err() != nil || bounded && !time.Now().Before(deadline)
		switch {
		case cut && (err != nil || part.Down != nil):
		case failed != nil:
			part, err = Found{}, failed
		default:
			part, err = found, nil
		}
		if !link.Pause(ctx, tryAgain) {
			return part, err
		}
	}
}

// tryCluster connects to each master of a Cluster, and ends the connections. It fails if it reaches none.
func tryCluster(ctx context.Context, cfg Config, d *link.Dialer) (Found, error) {
	ms := newMasters(cfg, d, nil, nil)
	defer ms.stop()
	defer context.AfterFunc(ctx, ms.stop)()
	var askable []string
	ms.with(func(m *guarded) { askable = m.Askable() })
	var t *cluster.Topology
	var err error
	for _, node := range askable {
		if t, err = ms.ask(node); err == nil {
			break
		}
	}
	if err != nil {
		return Found{}, err
	}
	found := Found{Address: d.Place(), RunID: t.ID, Nodes: t.Nodes, Masters: slices.Sorted(maps.Keys(t.Masters)), Down: make(map[string]error)}
	if t.Covered < redisop.Slots {
		found.Down[""] = wire.Unavailablef("the Cluster at %s has masters for %d of its %d slots only; see CLUSTER NODES", d.Address, t.Covered, redisop.Slots)
	}
	errs, risks := make([]error, len(found.Masters)), make([]string, len(found.Masters))
	var connecting sync.WaitGroup
	for i, master := range found.Masters {
		connecting.Go(func() {
			trial := link.NewTrial(d.At(master))
			defer trial.Close()
			_, _, risks[i], errs[i] = trial.Try(ctx)
		})
	}
	connecting.Wait()
	for i, err := range errs {
		if err != nil {
			found.Down[found.Masters[i]] = err
		}
	}
	found.Risk = cmp.Or(risks...)
	if !slices.Contains(errs, nil) {
		return Found{}, cmp.Or(errors.Join(errs[:min(1, len(errs))]...), found.Down[""])
	}
	return found, nil
}

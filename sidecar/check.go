package sidecar

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/settings"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// Check returns the error that Listen would return for the settings, as far as it can be found
// without a change to any file and while another sidecar serves; nil: none was found.
func (c Config) Check() error {
	if err := c.setDefaults(); err != nil {
		return settings.AsError(err)
	}
	errs := []error{peers.CheckFDLimit(), store.Check(store.Config{URL: c.Redis, TLS: c.tls()})}
	if !c.isInherited() {
		errs = append(errs, c.endpoint().Check())
	}
	if c.State != StateNone {
		errs = append(errs, checkState(&c))
	}
	if c.Metrics != "" {
		errs = append(errs, checkMetrics(&c))
	}
	return settings.AsError(errors.Join(errs...))
}

// FoundRedis is what TryRedis found.
type FoundRedis = store.Found

// TryRedis connects to Redis with these settings, and again until ctx ends if that fails, or if it
// reaches some masters of a Cluster only, and that is not enough.
func (c Config) TryRedis(ctx context.Context, isEnough func(*FoundRedis) bool) (FoundRedis, error) {
	or(&c.Redis, DefaultRedis)
	return store.Try(ctx, store.Config{URL: c.Redis, KeyPrefix: c.KeyPrefix, TLS: c.tls(), Replicas: c.Replicas}, isEnough)
}

// CheckInherited is Check for a sidecar whose Listener will be a socket with this address, which
// only another process has now. An abstract address begins with "@".
func (c Config) CheckInherited(socket string) error {
	c.Socket, c.inherited = socket, true
	return c.Check()
}

// checkState is state.Check, which also accepts that Listen has to make the directory.
func checkState(c *Config) error {
	dir := filepath.Dir(c.State)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !c.isInherited() && dir == filepath.Dir(c.Socket) {
		return nil
	}
	return state.Check(c.State)
}

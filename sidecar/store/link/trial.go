package link

import (
	"context"
	"log/slog"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Trial makes connections to one server, and ends them. What an attempt learns of addresses and Sentinels counts for the
// next one.
type Trial struct {
	dial      *Dialer
	sentinels *sentinels // nil: the URL says where the server is
	lost      lostAddresses
}

// NewTrial returns a Trial of the way to a server.
func NewTrial(d *Dialer) *Trial {
	t := &Trial{dial: d}
	if d.group != nil {
		t.sentinels = newSentinels(d.group, slog.New(slog.DiscardHandler))
	}
	return t
}

// Try connects, and returns where the server is, its run id ("": it does not tell), and why two owners of a lock are
// possible ("": nothing is known).
func (t *Trial) Try(ctx context.Context) (address, runID, risk string, err error) {
	s, err := t.dial.find(ctx, t.sentinels, &t.lost, wire.Identity{})
	if err != nil {
		return "", "", "", err
	}
	s.close()
	return s.dial.Place(), s.id.RunID, s.risk().String(), nil
}

// Close ends the connections to Sentinels.
func (t *Trial) Close() {
	if t.sentinels != nil {
		t.sentinels.close()
	}
}

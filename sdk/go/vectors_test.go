//go:build linux

package locksidecar

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// vector is one entry of the protocol's test vectors; SPEC.md §10 describes it.
type vector struct {
	Name, Kind, Hex, To, Answers string
	Pad                          int
	Message                      struct {
		ID    uint64
		Next  uint64
		More  bool
		NowNS int64 `json:"now_ns"`
		Err   *struct{}
	}
}

// replyVectors are the vectors of the client's side.
func replyVectors(t *testing.T) []vector {
	text, err := os.ReadFile("../../protocol/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var all, ours []vector
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Kind == "reply" || v.Kind == "bad" && v.To == "client" {
			ours = append(ours, v)
		}
	}
	return ours
}

func (v *vector) frame(t *testing.T) []byte {
	b, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, make([]byte, v.Pad)...)
}

// requests make a Client send the request that a vector answers. There is none for requests that
// no caller waits for.
var requests = map[string]func(ctx context.Context, c *Client) error{
	"acquire":    func(ctx context.Context, c *Client) error { return errOf(c.TryLock(ctx, "invoice:42")) },
	"acquire_rw": func(ctx context.Context, c *Client) error { return errOf(c.TryRLock(ctx, "catalog")) },
	"acquire_permits": func(ctx context.Context, c *Client) error {
		return errOf(c.Semaphore("partner-api", 10).TryAcquire(ctx, 2))
	},
	"downgrade": func(ctx context.Context, c *Client) error {
		s := c.current.Load()
		s.mu.Lock()
		l := s.enterHoldLocked(&wanted{mode: exclusiveMode}, &protocol.AcquireOK{Hold: 7, Token: 1, Count: 1, DeadlineNS: inOneHour()})
		s.mu.Unlock()
		return l.Downgrade(ctx)
	},
	"info":          func(ctx context.Context, c *Client) error { _, _, err := c.Info(ctx, "invoice:42"); return err },
	"list":          func(ctx context.Context, c *Client) error { return errOf(c.List(ctx)) },
	"events":        func(ctx context.Context, c *Client) error { return errOf(c.Events(ctx, 0, true)) },
	"status":        func(ctx context.Context, c *Client) error { return errOf(c.Status(ctx)) },
	"force_release": func(ctx context.Context, c *Client) error { return errOf(c.ForceRelease(ctx, "invoice:42")) },
	"metrics":       func(ctx context.Context, c *Client) error { return errOf(c.Metrics(ctx)) },
	"ping":          func(ctx context.Context, c *Client) error { return errOf(c.Ping(ctx)) },
	"hosts":         func(ctx context.Context, c *Client) error { return errOf(c.Hosts(ctx)) },
	"host_info": func(ctx context.Context, c *Client) error {
		_, _, err := c.InfoOn(ctx, "db-7", "invoice:42")
		return err
	},
	"who":         func(ctx context.Context, c *Client) error { return errOf(c.Who(ctx, "invoice:42")) },
	"host_status": func(ctx context.Context, c *Client) error { return errOf(c.StatusOn(ctx, "db-7")) },
	"host_list":   func(ctx context.Context, c *Client) error { return errOf(c.ListOn(ctx, "db-7")) },
	"host_force_release": func(ctx context.Context, c *Client) error {
		return errOf(c.ForceReleaseOn(ctx, "db-7", "invoice:42"))
	},
	"force_release_orphaned": func(ctx context.Context, c *Client) error {
		return errOf(c.ForceReleaseOrphaned(ctx, "invoice:42"))
	},
}

// A sidecar sends each vector of the client's side.
func TestClientReadsEveryVectorAsSpecified(t *testing.T) {
	for _, v := range replyVectors(t) {
		if v.Kind == "bad" && (v.Answers == "release" || v.Answers == "cancel") {
			continue // this SDK reads nothing but the id of these answers
		}
		t.Run(v.Name, func(t *testing.T) {
			if v.Answers == "hello" {
				v.testHello(t)
			} else {
				v.test(t)
			}
		})
	}
}

// testHello answers a hello with the vector.
func (v *vector) testHello(t *testing.T) {
	s := listen(t)
	go func() {
		p := s.accept()
		_ = expect[protocol.Hello](p)
		_, _ = p.nc.Write(v.frame(t))
	}()
	d := dialer{path: s.path, name: "test", connect: connectUnix, clock: func() int64 { return max(v.Message.NowNS, 1) }}
	w, failed := d.dial(t.Context(), "")
	if w != nil {
		w.close()
	}
	if bad := v.Kind == "bad"; bad != (failed != nil) {
		t.Errorf("hello failed with %v", failed)
	}
}

// test sends the vector as the answer to its request, or without a request.
func (v *vector) test(t *testing.T) {
	c, p := listen(t).dial()
	var answered func() (struct{}, error)
	if request := requests[v.Answers]; request != nil {
		setLastID(c, v.id(t)-1)
		answered = async(func() (struct{}, error) { return struct{}{}, request(context.Background(), c) })
		if _, err := p.frames.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.nc.Write(v.frame(t)); err != nil {
		t.Fatal(err)
	}
	switch {
	case v.Message.Next == 0:
	case v.Answers == "metrics":
		p.send(protocol.MetricsOK{ID: expect[protocol.Metrics](p).ID})
	case v.Answers == "host_list":
		p.send(protocol.HostListOK{ID: expect[protocol.HostList](p).ID})
	case v.Answers == "list":
		p.send(protocol.ListOK{ID: expect[protocol.List](p).ID})
	}
	if v.Message.More {
		p.send(protocol.HostsOK{ID: expect[protocol.Hosts](p).ID})
	}
	ends := v.Kind == "bad" || v.Message.Err != nil && v.Message.ID == 0
	if answered != nil {
		if _, err := answered(); ends != (err != nil) {
			t.Errorf("the request returned %v", err)
		}
	}
	if !ends {
		setLastID(c, 1000) // that of the vector may be the largest
		p.expectNothing(c)
		return
	}
	// The client closes the connection, and sends no request before that.
	_ = p.nc.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := p.frames.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the vector came %v, not the end of the connection", err)
	}
}

func setLastID(c *Client, id uint64) {
	s := c.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastID = id
}

// id is the id in the vector, whether or not the vector is valid as a whole.
func (v *vector) id(t *testing.T) uint64 {
	var d protocol.ReplyDecoder
	m, err := d.Decode(v.frame(t)[4:])
	if a, ok := m.(*protocol.Answer); err == nil && ok {
		return a.ID
	}
	return 2
}

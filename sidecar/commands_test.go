package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/peers"
)

// A daemon serves clients whose command lines block the reader.
//
// Shows docs/guarantees.md: Blocks the reading of its command line.
func TestClientIsServedThoughReadingItsCommandLineBlocks(t *testing.T) {
	redis, err := embedded.Start(t.Context(), slog.New(slog.DiscardHandler), embedded.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	s, err := Listen(Config{Socket: filepath.Join(t.TempDir(), "s"), Redis: redis.URL(), State: StateNone, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	release, reads := make(chan struct{}), atomic.Int32{}
	s.readers.commands.Line = func(int64) string {
		reads.Add(1)
		<-release
		return "late"
	}
	s.readers.commands.Name = func(int64) string { return "[name]" }
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	for i := range 3 * peers.MaxCommandReads {
		nc, err := net.Dial("unix", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		frames, dec := protocol.NewReader(nc), protocol.ReplyDecoder{}
		ask := func(m protocol.Request, ok protocol.OK) {
			t.Helper()
			if _, err := nc.Write(m.Append(nil)); err != nil {
				t.Fatal(err)
			}
			body, err := frames.Next()
			if err != nil {
				t.Fatal(err)
			}
			if m, err := dec.Decode(body); err != nil {
				t.Fatal(err)
			} else if a, is := m.(*protocol.Answer); !is || a.Unpack(ok) != nil {
				t.Fatalf("client %d got %+v", i, m)
			}
		}
		name, info := fmt.Sprint("lock-", i), protocol.InfoOK{}
		ask(protocol.Hello{ID: 1, V: protocol.Version, Client: "test"}, new(protocol.HelloOK))
		ask(protocol.Acquire{ID: 2, Name: name, WaitMS: protocol.Forever}, new(protocol.AcquireOK))
		if ask(protocol.Info{ID: 3, Name: name}, &info); info.Lock == nil || info.Lock.Cmd != "[name]" {
			t.Errorf("client %d: %+v", i, info.Lock)
		}
	}
	if n := reads.Load(); n != peers.MaxCommandReads {
		t.Errorf("%d reads were begun", n)
	}
	cancel()
	if err := <-served; err != nil { // it does not wait for the readers
		t.Error(err)
	}
	close(release)
}

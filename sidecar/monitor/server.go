// Package monitor serves what operators and their programs read of a sidecar over HTTP: metrics,
// whether it lives and is ready, and the status page. It changes nothing. The loop of the sidecar
// is asked for copies of what it has; how fast a reader reads cannot matter to it.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/locksidecar/locksidecar/sidecar"
)

const (
	// A reader has so long to send its request, and to read the answer.
	requestTimeout = 5 * time.Second
	answerTimeout  = 10 * time.Second
	// An unused connection is closed after idleTimeout: there are maxConns in all.
	idleTimeout = 10 * time.Second
	maxConns    = 16
	// So many requests at a time wait for an answer that needs the loop. The others are refused.
	maxAnswers = 2

	maxRequestHeader = 8 << 10
	stopTimeout      = time.Second
)

// Monitor is what a sidecar shows.
type Monitor struct {
	sidecar  *sidecar.Server
	build    Build
	history  history
	registry *prometheus.Registry
	pacer    *pacer // of what asks the loop
	log      *slog.Logger
	answers  chan struct{} // has an element for each request that waits for an answer of the loop
}

// New returns what a sidecar shows.
func New(s *sidecar.Server, build Build) *Monitor {
	m := &Monitor{sidecar: s, build: build, log: s.Config().Log, pacer: newPacer(), answers: make(chan struct{}, maxAnswers)}
	m.registry = newRegistry(&collector{sidecar: s, build: build})
	return m
}

// Serve serves l until ctx ends, and closes it.
func (m *Monitor) Serve(ctx context.Context, l net.Listener) {
	server := &http.Server{
		Handler:           m.handler(l.Addr()),
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxRequestHeader,
		ErrorLog:          slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(true)
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		if isLocal(l.Addr()) {
			m.history.run(ctx, m.sidecar)
		}
	}()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		bound, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if server.Shutdown(bound) != nil {
			_ = server.Close()
		}
	}()
	if err := server.Serve(newLimitedListener(l)); !errors.Is(err, http.ErrServerClosed) {
		m.log.Error("the metrics are not served any more", "error", err)
	}
	<-stopped
	<-sampled
}

// handler returns what is served at an address.
func (m *Monitor) handler(at net.Addr) http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(prometheus.GathererFunc(m.gather), promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError})
	mux.Handle("GET /metrics", m.oneOfFew(metrics))
	if isLocal(at) {
		mux.Handle("GET /{$}", m.oneOfFew(http.HandlerFunc(m.status)))
	}
	mux.HandleFunc("GET /live", m.live)
	mux.HandleFunc("GET /ready", m.ready)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", sidecar.MetricsServer)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if isLocal(at) && !isLocalName(r.Host) {
			http.Error(w, "this address is for programs of this host; name it by its IP address, or as localhost", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// oneOfFew bounds how many requests wait for an answer that needs the loop.
func (m *Monitor) oneOfFew(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case m.answers <- struct{}{}:
			defer func() { <-m.answers }()
			h.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests at one time; try again in a moment", http.StatusServiceUnavailable)
		}
	})
}

// isLocal reports whether only processes of this host reach an address.
func isLocal(at net.Addr) bool {
	tcp, ok := at.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// isLocalName reports whether a Host header names this host in a way that a web page from
// elsewhere cannot: with a name of its own that resolves to this address, such a page could
// otherwise read what is served here.
func isLocalName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// gather returns the metrics.
func (m *Monitor) gather() (families []*dto.MetricFamily, err error) {
	m.pacer.do(func() { families, err = m.registry.Gather() })
	return families, err
}

// Metrics returns each metric in the text format, by name.
func (m *Monitor) Metrics() ([]string, error) {
	families, err := m.gather()
	if err != nil {
		return nil, err
	}
	metrics := make([]string, len(families))
	for i, f := range families {
		var text strings.Builder
		if err := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeTextPlain)).Encode(f); err != nil {
			return nil, err
		}
		metrics[i] = text.String()
	}
	return metrics, nil
}

// live answers whether the daemon works. If it does not, a restart helps.
func (m *Monitor) live(w http.ResponseWriter, r *http.Request) {
	if why := m.notLive(r.Context()); why != "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (m *Monitor) notLive(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	if err := m.sidecar.Ping(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// ready answers whether clients can lock.
func (m *Monitor) ready(w http.ResponseWriter, r *http.Request) {
	why := m.notLive(r.Context())
	if why == "" {
		why, _ = m.sidecar.Trouble()
	}
	if redis := m.sidecar.Redis(); why == "" && redis != "ok" {
		why = redis
	}
	if why != "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// limitedListener has at most maxConns connections open. While it has, further ones are closed
// at once: a reader that comes too often sees an error, and the kernel queues nothing.
type limitedListener struct {
	net.Listener
	slots chan struct{}
}

func newLimitedListener(l net.Listener) *limitedListener {
	return &limitedListener{Listener: l, slots: make(chan struct{}, maxConns)}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &limitedConn{Conn: c, slots: l.slots}, nil
		default:
			_ = c.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	slots chan struct{}
	once  sync.Once
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { <-c.slots })
	return c.Conn.Close()
}

// Package monitor serves what operators and their programs read of a sidecar over HTTP: metrics,
// whether it lives and is ready, and the status page. It changes nothing. The loop of the sidecar
// is asked for copies of what it has; how fast a reader reads cannot matter to it.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/locksidecar/locksidecar/sidecar"
)

const (
	// A reader has so long to send its request, and to read the answer.
	requestTimeout = 5 * time.Second
	answerTimeout  = 10 * time.Second
	// An unused connection is closed after idleTimeout, or when another one needs its place.
	idleTimeout = 10 * time.Second

	maxRequestHeader = 8 << 10
	stopTimeout      = time.Second
)

// textFormat is that of the metrics.
var textFormat = expfmt.NewFormat(expfmt.TypeTextPlain)

// Monitor is what a sidecar shows.
type Monitor struct {
	sidecar  *sidecar.Server
	build    Build
	history  history
	registry *prometheus.Registry
	log      *slog.Logger

	// What asks the loop.
	pacer     *pacer
	metrics   *shared
	pages     map[int]*shared // by the seconds until a browser loads the page again
	lockPages sharedByKey
}

// New returns what a sidecar shows.
func New(s *sidecar.Server, build Build) *Monitor {
	m := &Monitor{sidecar: s, build: build, log: s.Config().Log, pages: make(map[int]*shared)}
	m.registry = newRegistry(&collector{sidecar: s, build: build})
	m.pacer = newPacer()
	m.metrics = &shared{pacer: m.pacer, work: m.gather}
	for _, refresh := range []int{noRefresh, refreshSeconds} {
		m.pages[refresh] = &shared{pacer: m.pacer, work: func() answer { return m.writePage(refresh) }}
	}
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
		ConnContext:       withConn,
		ConnState:         onState,
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
	mux.HandleFunc("GET /metrics", m.serveMetrics)
	if isLocal(at) {
		mux.HandleFunc("GET /{$}", m.status)
		mux.HandleFunc("GET /lock", m.lock)
	}
	mux.HandleFunc("GET /live", m.live)
	mux.HandleFunc("GET /ready", m.ready)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		beginAnswer(w, r)
		w.Header().Set("Server", sidecar.MetricsServer)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if isLocal(at) && !isLocalName(r.Host) {
			http.Error(w, "this address is for programs of this host; name it by its IP address, or as localhost", http.StatusMisdirectedRequest)
			return
		}
		mux.ServeHTTP(w, r)
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

// gather returns the metrics in the text format.
func (m *Monitor) gather() answer {
	families, err := m.registry.Gather()
	if err != nil {
		m.log.Warn("not all metrics can be gathered", "error", err)
		if len(families) == 0 {
			return answer{why: err.Error()}
		}
	}
	var a answer
	for _, f := range families {
		var text strings.Builder
		if err := expfmt.NewEncoder(&text, textFormat).Encode(f); err != nil {
			return answer{why: err.Error()}
		}
		a.texts = append(a.texts, text.String())
	}
	return a
}

// Metrics returns each metric in the text format, by name.
func (m *Monitor) Metrics() ([]string, error) {
	a := m.metrics.get()
	if a.why != "" {
		return nil, errors.New(a.why)
	}
	return a.texts, nil
}

// serveMetrics serves the metrics.
func (m *Monitor) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	a := m.metrics.get()
	if a.why != "" {
		http.Error(w, a.why, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(textFormat))
	for _, text := range a.texts {
		if _, err := io.WriteString(w, text); err != nil {
			return // the reader has left, or is slow
		}
	}
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

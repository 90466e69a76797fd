package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/settings"
)

func TestMetricsAddressWithoutAHostIsLoopback(t *testing.T) {
	long := "/" + strings.Repeat("x", 107)
	for _, tt := range []struct{ setting, network, address string }{
		{"127.0.0.1:9377", "tcp", "127.0.0.1:9377"},
		{":9377", "tcp", "127.0.0.1:9377"},
		{"localhost:9377", "tcp", "127.0.0.1:9377"},
		{"0.0.0.0:0", "tcp", "0.0.0.0:0"},
		{"[::1]:9377", "tcp", "[::1]:9377"},
		{"/run/m.sock", "unix", "/run/m.sock"},
		{"", "", ""}, {"9377", "", ""}, {"127.0.0.1", "", ""}, {"127.0.0.1:http", "", ""}, {"127.0.0.1:65536", "", ""},
		{"host.example:9377", "", ""}, {"m.sock", "", ""}, {"@m", "", ""}, {long, "", ""},
	} {
		network, address, err := metricsAddress(tt.setting)
		if tt.network == "" {
			if err == nil {
				t.Errorf("%q is accepted", tt.setting)
			}
			continue
		}
		if network != tt.network || address != tt.address || err != nil {
			t.Errorf("%q: %s %s, %v", tt.setting, network, address, err)
		}
	}
}

// The start and the check agree, and say what to do.
func TestMetricsListenerThatCannotBeOpenedIsRefused(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() { // another program
		_ = http.Serve(other, http.NotFoundHandler())
	}()
	socket, err := net.Listen("unix", filepath.Join(t.TempDir(), "m"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	go func() {
		_ = http.Serve(socket, http.NotFoundHandler())
	}()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, setting, want string
		stays               bool
	}{
		{"taken", other.Addr().String(), "another program listens there", false},
		{"a socket that is taken", socket.Addr().String(), "listens on it", false},
		{"an address of another host", "192.0.2.1:9377", "this host does not have that address", false},
		{"no address", "nine", "write an IP address of this host and a port", true},
		{"a file", file, "there is a file that is not a socket", true},
		{"a directory", filepath.Dir(file), "it is a directory; name a file in it", true},
		{"no directory", filepath.Join(file, "m"), file + "/m", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Config{Socket: filepath.Join(t.TempDir(), "s"), Metrics: tt.setting}
			errs := map[string]error{"check": cfg.Check()}
			if tt.stays { // with the others, a sidecar starts
				_, errs["start"] = Listen(cfg)
			}
			for when, err := range errs {
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "metrics") {
					t.Errorf("%s: %v, want %q", when, err, tt.want)
				}
				var stays *settings.Error
				if errors.As(err, &stays) != tt.stays {
					t.Errorf("%s: %v: a settings.Error: %v", when, err, !tt.stays)
				}
			}
			if _, err := os.Stat(cfg.Socket); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a sidecar that cannot start has left its socket: %v", err)
			}
		})
	}
}

// A restart ends no hold because another program took the port meanwhile.
func TestLocksAreServedUntilTheMetricsListenerCanBeOpened(t *testing.T) {
	redis, err := embedded.Start(t.Context(), slog.New(slog.DiscardHandler), embedded.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var log strings.Builder
	address := other.Addr().String()
	s, err := Listen(Config{
		Socket: filepath.Join(t.TempDir(), "s"), Redis: redis.URL(), State: StateNone, Metrics: address,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "another program listens there; stop it") != 1 || !strings.Contains(text, address) {
			t.Errorf("the log does not say once what to do: %q", text)
		}
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		stopped, stop := context.WithCancel(t.Context())
		time.AfterFunc(3*metricsRetry, stop)
		if l := s.MetricsListener(stopped); l != nil {
			t.Errorf("there is a listener at the address of another: %v", l.Addr())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		time.AfterFunc(metricsRetry+time.Second, func() { other.Close() })
		begin := time.Now()
		l := s.MetricsListener(t.Context())
		if l == nil {
			t.Fatal("there is no listener")
		}
		defer l.Close()
		if took := time.Since(begin); l.Addr().String() != address || took != 2*metricsRetry {
			t.Errorf("%v after %v, want %v after %v", l.Addr(), took, address, 2*metricsRetry)
		}
	})
}

func TestMetricsOnTheSocketOfClientsIsRefused(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	for metrics, want := range map[string]bool{
		socket: true, dir + "/./s": true, filepath.Join(link, "s"): true,
		filepath.Join(dir, "m"): false, filepath.Join(t.TempDir(), "s"): false,
	} {
		cfg := Config{Socket: socket, Metrics: metrics}
		for how, err := range map[string]error{"own": cfg.Check(), "inherited": cfg.CheckInherited(socket)} {
			var refused *settings.Error
			if got := errors.As(err, &refused) && strings.Contains(err.Error(), "choose another path"); got != want {
				t.Errorf("%s socket, metrics %s: %v; refused: want %v", how, metrics, err, want)
			}
		}
	}
}

func TestCheckAcceptsTheMetricsListenerOfARunningSidecar(t *testing.T) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "m")} {
		own, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer own.Close()
		go func() {
			_ = http.Serve(own, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Server", MetricsServer)
				w.WriteHeader(http.StatusNotFound)
			}))
		}()
		if err := checkMetrics(&Config{Metrics: own.Addr().String()}); err != nil {
			t.Error(err)
		}
	}
	if err := checkMetrics(&Config{Metrics: "127.0.0.1:0"}); err != nil {
		t.Error(err)
	}
}

func TestMetricsSocketHasTheModeOfTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m")
	// One that a killed daemon left.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	cfg := Config{Metrics: path, SocketMode: 0o640}
	if err := checkMetrics(&cfg); err != nil {
		t.Error(err)
	}
	l, err := listenMetrics(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st, err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	var errno unix.Errno
	if _, err := listenMetrics(&cfg); err == nil || errors.As(err, &errno) {
		t.Errorf("a second listener: %v", err)
	}
}

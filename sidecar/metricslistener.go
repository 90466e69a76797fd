package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/endpoint"
	"github.com/locksidecar/locksidecar/sidecar/settings"
)

// MetricsServer is the Server header of every answer over the metrics listener.
const MetricsServer = "locksidecar"

// metricsRetry is how often a sidecar tries to open the metrics listener while it cannot.
const metricsRetry = 5 * time.Second

// metricsAddress returns the network and the address of the setting Metrics.
func metricsAddress(setting string) (network, address string, err error) {
	if filepath.IsAbs(setting) {
		return "unix", setting, endpoint.CheckPath(setting)
	}
	host, port, err := net.SplitHostPort(setting)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	if err == nil {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return "", "", fmt.Errorf("metrics %q: write an IP address of this host and a port, such as \"127.0.0.1:9377\", or the absolute path of a Unix socket", setting)
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// openMetrics opens the listener of the setting Metrics. It returns settings.Errors only: an error
// that may pass is logged, because a restart must not end the holds if another program took the
// port meanwhile.
func (s *Server) openMetrics() (err error) {
	if s.metrics, err = listenMetrics(&s.loop.cfg); err == nil {
		return nil
	}
	var refused *settings.Error
	if err = settings.AsError(err); errors.As(err, &refused) {
		return err
	}
	s.loop.log.Error("the metrics are not served yet; locks are", "error", err, "retry", metricsRetry)
	return nil
}

// MetricsListener returns the listener of the setting Metrics as soon as it is open; nil: there
// is no such setting, or ctx ended before. While another program listens there, it tries again
// every five seconds. The caller serves the listener, and closes it. It is called once.
func (s *Server) MetricsListener(ctx context.Context) net.Listener {
	if s.loop.cfg.Metrics == "" || s.metrics != nil {
		return s.metrics
	}
	tick := time.NewTicker(metricsRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		l, err := listenMetrics(&s.loop.cfg)
		if err == nil {
			return l
		}
		s.loop.log.Debug("the metrics are not served yet", "error", err)
	}
}

// isSameSocket reports whether two paths of sockets name the same file, which need not exist.
func isSameSocket(a, b string) bool {
	a, b = filepath.Clean(a), filepath.Clean(b)
	if filepath.Base(a) != filepath.Base(b) {
		return false
	}
	a, b = filepath.Dir(a), filepath.Dir(b)
	dirA, errA := os.Stat(a)
	dirB, errB := os.Stat(b)
	return a == b || errA == nil && errB == nil && os.SameFile(dirA, dirB)
}

// listenMetrics opens the listener of the setting Metrics.
func listenMetrics(cfg *Config) (net.Listener, error) {
	network, address, err := metricsAddress(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	if network == "tcp" {
		l, err := net.Listen(network, address)
		if err != nil {
			return nil, errMetrics(cfg.Metrics, err)
		}
		return l, nil
	}
	gid, err := endpoint.GroupID(cfg.SocketGroup)
	if err != nil {
		return nil, err
	}
	l, err := endpoint.Bind(address, cfg.SocketMode, gid)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}

func errMetrics(setting string, err error) error {
	hint := "choose another address, or leave the setting out"
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		hint = "another program listens there; stop it, or choose another port"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		hint = "this host does not have that address; choose 127.0.0.1, or an address that \"ip address\" shows"
	case errors.Is(err, unix.EACCES):
		hint = "this user may not listen there; choose a port from 1024"
	}
	return fmt.Errorf("metrics %q: %w: %s", setting, err, hint)
}

// checkMetrics returns the error that listenMetrics would return if no other sidecar had the
// listener. With some of these errors a sidecar starts, but serves no metrics.
func checkMetrics(cfg *Config) error {
	network, address, err := metricsAddress(cfg.Metrics)
	if err != nil {
		return err
	}
	if network == "unix" {
		if err := (endpoint.Config{Path: address, Group: cfg.SocketGroup}).Check(); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		if err := endpoint.CheckFree(address); err != nil && !isMetricsServer(network, address) {
			return fmt.Errorf("metrics: %w", err)
		}
		return nil
	}
	l, err := net.Listen(network, address)
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, unix.EADDRINUSE) && isMetricsServer(network, address):
		return nil // the sidecar that these settings are for
	}
	return errMetrics(cfg.Metrics, err)
}

// isMetricsServer reports whether a sidecar answers at an address.
func isMetricsServer(network, address string) bool {
	c, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, "GET /none HTTP/1.0\r\n\r\n"); err != nil {
		return false
	}
	answer, _ := io.ReadAll(io.LimitReader(c, 4096))
	return strings.Contains(string(answer), "\r\nServer: "+MetricsServer+"\r\n")
}

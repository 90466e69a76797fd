package sidecar

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/endpoint"
)

// MetricsServer is the Server header of every answer over the metrics listener.
const MetricsServer = "locksidecar"

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

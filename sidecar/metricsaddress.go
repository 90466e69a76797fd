package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/endpoint"
)

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

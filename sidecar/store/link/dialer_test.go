package link

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A connection is cut with link.mu held: that must not wait for a peer that takes
// nothing any more, not even to be told goodbye.
func TestCutDoesNotWaitForThePeer(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	here, there := net.Pipe()
	defer there.Close()
	shaken := make(chan error, 1)
	go func() {
		shaken <- tls.Server(there, &tls.Config{Certificates: cert.TLS.Certificates, SessionTicketsDisabled: true}).Handshake()
	}()
	said := &counted{Conn: here}
	secure := tls.Client(said, &tls.Config{InsecureSkipVerify: true})
	if err := secure.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := recv(t, shaken, "handshake"); err != nil {
		t.Fatal(err)
	}
	before := said.writes.Load()
	w := netConn{Conn: secure, socket: said, secure: true}
	w.Close()
	if n := said.writes.Load() - before; n > 0 {
		t.Errorf("%d writes", n)
	}
}

// counted counts what is written.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// Certificates of which each has the name of its node only: the seed is trusted, and the node that it names is not.
func TestCertificateOfANodeSaysWhatAllNodesNeed(t *testing.T) {
	d := (&Dialer{Server: wire.Server{Address: "seed.test:6379"}, Nodes: []string{"seed.test:6379"}}).At("10.0.0.2:6379")
	err := x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"two.test"}}, Host: "seed.test"}
	if got := d.untrusted(err); !strings.Contains(got, `the certificate of the node of the Redis Cluster at 10.0.0.2:6379 does not have the name "seed.test"; the certificates of all nodes must have one name in common`) {
		t.Error(got)
	}
}

func TestRelativesOfRedisAreNotTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"6.2.0": false, "6.2.14": false, "7.0.15": false, "8.4.0": false, "10.0.0": false, "": false, "unstable": false,
		"6.0.16": true, "6.1.240": true, "5.0.7": true, "2.8": true, "5": true,
	} {
		if got := tooOld(version); got != want {
			t.Errorf("tooOld(%q) = %v", version, got)
		}
	}
}

func TestLostAddressesAreTriedLast(t *testing.T) {
	lost := &lostAddresses{}
	hosts := func() []string {
		hosts := []string{"a", "b", "c"}
		lost.sort(hosts)
		return hosts
	}
	for _, tt := range []struct {
		lost string
		want []string
	}{
		{"", []string{"a", "b", "c"}},
		{"a", []string{"b", "c", "a"}},
		{"b", []string{"c", "a", "b"}},
		{"a", []string{"c", "b", "a"}},
		{"c", []string{"b", "a", "c"}},
	} {
		if tt.lost != "" {
			lost.add(tt.lost)
		}
		if got := hosts(); !slices.Equal(got, tt.want) {
			t.Errorf("after %q was lost: %v", tt.lost, got)
		}
	}
	for range 3 * maxLost {
		lost.add(net.IPv4(10, 0, 0, byte(len(lost.hosts))).String() + "x")
	}
	if len(lost.hosts) > maxLost {
		t.Errorf("%d addresses are kept", len(lost.hosts))
	}
}

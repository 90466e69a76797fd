package store

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
)

// authority signs certificates, and writes them to files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.write("ca.pem", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)))
	return a
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// sign writes name.pem and name.key.
func (a *authority) sign(name string, until time.Time) {
	a.t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: until,
		DNSNames: []string{"redis.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.write(name+".pem", "CERTIFICATE", must(x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)))
	a.write(name+".key", "PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(key)))
}

// startSecure starts a redis-server with a TLS port that asks for certificates, as is its
// default, and returns the URL.
func (a *authority) startSecure(name string) (url string) {
	a.t.Helper()
	_, address := a.startSecureServer(name)
	return "rediss://" + address
}

// startSecureServer starts it with more arguments, and returns the address of the TLS port.
func (a *authority) startSecureServer(name string, args ...string) (s *server, address string) {
	a.t.Helper()
	port := freePort(a.t)
	s = startRedis(a.t, append(args, "--tls-port", port, "--tls-ca-cert-file", a.file("ca.pem"),
		"--tls-cert-file", a.file(name+".pem"), "--tls-key-file", a.file(name+".key"))...)
	return s, net.JoinHostPort("127.0.0.1", port)
}

func TestRedisIsReachedOverTLSOnlyIfBothSidesTrustEachOther(t *testing.T) {
	a, stranger := newAuthority(t, "ours"), newAuthority(t, "a stranger")
	a.sign("server", time.Now().Add(time.Hour))
	a.sign("client", time.Now().Add(time.Hour))
	a.sign("old", time.Now().Add(-time.Hour))
	stranger.sign("client", time.Now().Add(time.Hour))
	url, expired := a.startSecure("server"), a.startSecure("old")
	good := link.TLS{CA: a.file("ca.pem"), Cert: a.file("client.pem"), Key: a.file("client.key"), ServerName: "redis.test"}

	t.Run("both do", func(t *testing.T) {
		r := connected(t, url, func(c *Config) { c.TLS = good })
		if got := r.one(takeOp("x", 1)); got.Outcome != redisop.Done || got.Token == 0 {
			t.Errorf("a lock over TLS: %+v", got)
		}
		r.Subscribe(0, "x")
		if name := recv(t, r.subscribed, "OnSubscribed"); name != "x" {
			t.Errorf("subscribed to %q", name)
		}
	})
	for _, tt := range []struct {
		name, url string
		change    func(*link.TLS)
		want      string
	}{
		{"a CA that did not sign", url, func(c *link.TLS) { c.CA = stranger.file("ca.pem") }, "not signed by an authority that is trusted here"},
		{"the CAs of the host", url, func(c *link.TLS) { c.CA = "" }, "name the file of its CA with redis-ca"},
		{"another name", url, func(c *link.TLS) { c.ServerName = "" }, "redis-server-name"},
		{"a certificate that has expired", expired, func(*link.TLS) {}, "has expired"},
		{"no certificate of ours", url, func(c *link.TLS) { c.Cert, c.Key = "", "" }, "redis-cert and redis-key"},
		{"a certificate of ours from a stranger", url, func(c *link.TLS) { c.Cert, c.Key = stranger.file("client.pem"), stranger.file("client.key") }, "redis-cert and redis-key"},
		{"a certificate of ours that has expired", url, func(c *link.TLS) { c.Cert, c.Key = a.file("old.pem"), a.file("old.key") }, "redis-cert and redis-key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := good
			tt.change(&files)
			r := open(t, tt.url, func(c *Config) { c.TLS = files })
			if why := r.down(); !strings.Contains(why, tt.want) || !strings.Contains(why, "127.0.0.1") {
				t.Errorf("down: %s; want %q in it", why, tt.want)
			}
		})
	}
}

// The nodes of a Cluster announce IP addresses, and their certificates have names.
//
// Shows docs/topologies.md: TLS.
func TestClusterIsReachedOverTLS(t *testing.T) {
	a := newAuthority(t, "ours")
	a.sign("server", time.Now().Add(time.Hour))
	a.sign("client", time.Now().Add(time.Hour))
	s, address := a.startSecureServer("server", "--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1")
	must(s.admin().ClusterAddSlotsRange(ctx, 0, redisop.Slots-1).Result())
	s.serves()
	good := link.TLS{CA: a.file("ca.pem"), Cert: a.file("client.pem"), Key: a.file("client.key"), ServerName: "redis.test"}
	r := openCluster(t, "rediss+cluster://"+address, func(c *Config) { c.TLS = good }).settled()
	if res := r.do(takeOp("lock", 1))[0]; res.Outcome != redisop.Done {
		t.Errorf("a lock over TLS: %+v", res)
	}
	if got := r.masters.get(1).dial.Address; got != address {
		t.Errorf("the node is used at %s, want its TLS port %s", got, address)
	}
	good.ServerName = ""
	other := openCluster(t, "rediss+cluster://"+address, func(c *Config) { c.TLS = good })
	other.await("sentence", func() bool { return strings.Contains(other.downs[0], "redis-server-name") })
}

func TestTLSSettingsThatCannotWorkAreRefused(t *testing.T) {
	a := newAuthority(t, "ours")
	a.sign("client", time.Now().Add(time.Hour))
	a.write("empty.pem", "NOTHING", nil)
	for _, tt := range []struct {
		name, url string
		tls       link.TLS
		want      string
	}{
		{"without TLS in the URL", "redis://h", link.TLS{CA: a.file("ca.pem")}, "write rediss://"},
		{"a certificate without its key", "rediss://h", link.TLS{Cert: a.file("client.pem")}, "need each other"},
		{"a CA that is not there", "rediss://h", link.TLS{CA: a.file("none")}, "cannot be read"},
		{"a CA without a certificate", "rediss://h", link.TLS{CA: a.file("empty.pem")}, "has no certificate"},
		{"another key", "rediss://h", link.TLS{Cert: a.file("ca.pem"), Key: a.file("client.key")}, "cannot be used"},
	} {
		if err := Check(Config{URL: tt.url, TLS: tt.tls}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// An alert that is not about the certificate of this sidecar is not blamed on it.
func TestAlertOfRedisThatIsNotAboutTheCertificate(t *testing.T) {
	a := newAuthority(t, "ours")
	a.sign("server", time.Now().Add(time.Hour))
	cert, err := tls.LoadX509KeyPair(a.file("server.pem"), a.file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	r := open(t, "rediss://"+l.Addr().String(), func(c *Config) { c.TLS = link.TLS{CA: a.file("ca.pem"), ServerName: "redis.test"} })
	if why := r.down(); strings.Contains(why, "does not accept the TLS certificate") {
		t.Error("untrue: ", why)
	}
}

func TestTrustThatTheURLSwitchesOffIsRefused(t *testing.T) {
	a := newAuthority(t, "ours")
	for _, files := range []link.TLS{{CA: a.file("ca.pem")}, {ServerName: "redis.test"}} {
		if err := Check(Config{URL: "rediss://127.0.0.1:1/0?skip_verify=true", TLS: files}); err == nil || !strings.Contains(err.Error(), "skip_verify") {
			t.Errorf("%+v: %v", files, err)
		}
	}
}

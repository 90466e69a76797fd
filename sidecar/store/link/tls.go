package link

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS is how a Redis with a rediss:// URL is trusted, and how it trusts this sidecar.
// The files are PEM, and are read at each connection: one that was renewed counts from the
// next connection on.
type TLS struct {
	CA         string // file with the certificates of the authorities; "": those of the host
	Cert, Key  string // files of the certificate that Redis asks for; "": none
	ServerName string // in the certificate of Redis; "": the host of the URL
}

// config completes base with the files.
func (t *TLS) config(base *tls.Config) (*tls.Config, error) {
	c := base.Clone()
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("the CA of Redis cannot be read: %w; check redis-ca", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM; name the file of the CA of Redis as redis-ca", t.CA)
		}
	}
	if t.Cert != "" {
		cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate for Redis (%s) and its key (%s) cannot be used: %w; check redis-cert and redis-key", t.Cert, t.Key, err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// check refuses settings that do not fit the URL.
func (t *TLS) check(base *tls.Config) error {
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return errors.New("redis-cert and redis-key need each other; name both or neither")
	case *t == TLS{}:
		return nil
	case base == nil:
		return errors.New("redis-ca, redis-cert, redis-key and redis-server-name have no effect without TLS; write rediss:// in the Redis URL, or leave them out")
	}
	if base.InsecureSkipVerify && (t.CA != "" || t.ServerName != "") {
		return errors.New("redis-ca and redis-server-name have no effect with skip_verify in the Redis URL, which trusts any certificate; leave skip_verify out")
	}
	_, err := t.config(base)
	return err
}

package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Errors become two things here: an Outcome, for the table, and a sentence that
// names the address and says what to do, for people. Never the password.

// broken is the sentence for a connection that failed with err while in use.
func (d *Dialer) broken(err error) string {
	var strange *wire.UnexpectedReply
	var timeout net.Error
	switch {
	case errors.As(err, &strange), errors.Is(err, wire.ErrStrange):
		return fmt.Sprintf("Redis at %s cannot be understood: %v", d.Address, err)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("Redis at %s did not answer within %v", d.Address, d.timeout)
	case errors.Is(err, net.ErrClosed):
		return fmt.Sprintf("the connection to Redis at %s was given up", d.Address)
	case isEOF(err):
		return fmt.Sprintf("Redis at %s closed the connection", d.Address)
	}
	if why := d.alerted(err); why != "" {
		return why
	}
	return fmt.Sprintf("the connection to Redis at %s broke: %s", d.Address, d.scrub(err))
}

func (d *Dialer) dialError(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return wire.Unavailablef("the host of Redis at %s cannot be found (%s); check the name in the Redis URL", d.Address, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return wire.Unavailablef("Redis at %s refuses connections; check that it runs and listens there", d.Address)
	case d.options.Network == "unix" && errors.Is(err, os.ErrNotExist):
		return wire.Unavailablef("there is no Redis socket at %s; check that Redis runs with \"unixsocket %s\"", d.Address, d.Address)
	case errors.Is(err, os.ErrPermission):
		return wire.Unavailablef("this user may not open the Redis socket at %s; see unixsocketperm in redis.conf", d.Address)
	case errors.As(err, &timeout) && timeout.Timeout():
		return wire.Unavailablef("Redis at %s did not accept a connection within %v; check the address and any firewall", d.Address, d.options.DialTimeout)
	}
	return wire.Unavailablef("Redis at %s cannot be reached: %s", d.Address, d.scrub(err))
}

func (d *Dialer) tlsError(err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) || isEOF(err) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		// A Redis without TLS takes the greeting for half a line and waits.
		return wire.Unavailablef("Redis at %s does not answer in TLS on this port; name its TLS port, or write redis:// instead of rediss://", d.Address)
	}
	if why := d.untrusted(err); why != "" {
		return wire.Unavailable(why)
	}
	if why := d.alerted(err); why != "" {
		return wire.Unavailable(why)
	}
	return wire.Unavailablef("TLS with Redis at %s failed: %s", d.Address, d.scrub(err))
}

// untrusted is the sentence for a certificate of Redis that is not accepted; "": err is
// about something else.
func (d *Dialer) untrusted(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return fmt.Sprintf("the certificate of Redis at %s is not signed by an authority that is trusted here; name the file of its CA with redis-ca (%s)", d.Address, d.scrub(err))
	case errors.As(err, &name) && d.IsNode:
		return fmt.Sprintf("the certificate of the node of the Redis Cluster at %s does not have the name \"%s\"; the certificates of all nodes must have one name in common: that of the Redis URL, or redis-server-name (%s)",
			d.Address, name.Host, d.scrub(err))
	case errors.As(err, &name):
		return fmt.Sprintf("the certificate of Redis at %s is for another name; write that name in the Redis URL, or as redis-server-name (%s)", d.Address, d.scrub(err))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of Redis at %s has expired, or is not valid yet; renew it, or set the clock of this host (%s)", d.Address, d.scrub(err))
	case errors.As(err, &invalid):
		return fmt.Sprintf("the certificate of Redis at %s is not valid: %s", d.Address, d.scrub(err))
	}
	return ""
}

// alerted is the sentence for a TLS alert that Redis sent because of the certificate of
// this sidecar; "": err is something else. The package of Go shows the number of an alert
// in its text only; the names of those about certificates contain that word.
func (d *Dialer) alerted(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" || !strings.Contains(op.Err.Error(), "certificate") {
		return ""
	}
	return fmt.Sprintf("Redis at %s does not accept the TLS certificate of this sidecar; name one that it trusts with redis-cert and redis-key (%s)", d.Address, d.scrub(err))
}

// handshakeError is for a connection that was made but on which Redis cannot be
// used yet.
func (d *Dialer) handshakeError(err error) error {
	if !isReply(err) && !isEOF(err) {
		return wire.Unavailable(d.broken(err))
	}
	text := err.Error()
	user := "the default user"
	if d.options.Username != "" {
		user = fmt.Sprintf("user %q", d.options.Username)
	}
	switch {
	case isEOF(err) && d.options.TLSConfig != nil:
		return wire.Unavailablef("Redis at %s closed the TLS connection before it said anything; it may not accept the certificate of this sidecar (redis-cert and redis-key; see the log of Redis), or have no connection to spare (maxclients)", d.Address)
	case isEOF(err):
		return wire.Unavailablef("Redis at %s closed the connection before it said anything; it is ending, wants TLS (write rediss://), or has no connection to spare (maxclients)", d.Address)
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		return wire.Unavailablef("Redis at %s does not accept the password of %s; check the Redis URL", d.Address, user)
	case strings.Contains(text, "NOAUTH"):
		return wire.Unavailablef("Redis at %s wants a password; put it into the Redis URL, as in redis://user:password@host", d.Address)
	case strings.Contains(text, "LOADING"):
		return d.loading()
	case strings.Contains(text, "DB index"), strings.Contains(text, "invalid DB"):
		return wire.Unavailablef("Redis at %s has no database %d; check the Redis URL", d.Address, d.options.DB)
	case d.unwelcome(text) != nil:
		return d.unwelcome(text)
	case strings.Contains(text, "NOPERM"):
		return wire.Unavailablef("Redis at %s does not permit %s what locksidecar needs; let its ACL have +time +evalsha +eval +script|load and the commands of the scripts (%s)",
			d.Address, user, wire.Clip(d.scrub(err)))
	}
	return wire.Unavailablef("Redis at %s does not accept us: %s", d.Address, wire.Clip(d.scrub(err)))
}

// unwelcome is for a Redis that has said text and closed the connection, whoever the client is; nil: it is
// another text.
func (d *Dialer) unwelcome(text string) error {
	switch {
	case strings.Contains(text, "max number of clients"):
		return wire.Unavailablef("Redis at %s has no connection to spare (max number of clients); raise its maxclients", d.Address)
	case strings.Contains(text, "protected mode"):
		return wire.Unavailablef("Redis at %s is in protected mode, and accepts connections of its own host only; let it require a password, and put that into the Redis URL", d.Address)
	}
	return nil
}

func (d *Dialer) loading() error {
	return wire.Unavailablef("Redis at %s is loading its data; waiting until it has", d.Address)
}

// noRESP3 is for a server that did not switch to RESP3.
func (d *Dialer) noRESP3(answer wire.Reply) error {
	why := "it answers in RESP2"
	if answer.Kind == '-' {
		why = wire.Clip(answer.Text)
	}
	return wire.Unavailablef("Redis at %s does not speak RESP3 (HELLO 3): locksidecar needs it, which Redis has since version 6; a proxy in between may be the reason (%s)", d.Address, why)
}

// scriptError is for a Redis that does not run our scripts.
func (d *Dialer) scriptError(err error) error {
	switch wire.Code(err.Error()) {
	case "NOPERM":
		return wire.Unavailablef("Redis at %s does not permit this user to run scripts; let its ACL have +evalsha, and +script|load or +eval (%s)", d.Address, wire.Clip(err.Error()))
	case "NOSCRIPT":
		return wire.Unavailablef("Redis at %s does not permit this user to load scripts; let its ACL have +script|load or +eval", d.Address)
	}
	return d.handshakeError(err)
}

// scrub is the text of err without the password, should a server repeat it.
func (d *Dialer) scrub(err error) string {
	text := err.Error()
	if d.options.Password != "" {
		text = strings.ReplaceAll(text, d.options.Password, "…")
	}
	return text
}

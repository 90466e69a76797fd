package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Errors become two things here: an Outcome, for the table, and a sentence that
// names the address and says what to do, for people. Never the password.

// unavailableError is an error whose text is a whole sentence for an operator, not a part of
// another program's.
type unavailableError string

func (o unavailableError) Error() string { return string(o) }

func unavailablef(format string, args ...any) error {
	return unavailableError(fmt.Sprintf(format, args...))
}

// reason is an error that Redis answered, with its code first. An error that is
// raised inside of a script is told by Redis 6.2 as "@user_script: 64: -OOM command
// not allowed…".
func reason(text string) string {
	if where, rest, ok := strings.Cut(text, ": -"); ok && strings.HasPrefix(where, "@user_script: ") {
		return strings.TrimSpace(rest)
	}
	return text
}

// code is the first word of an error that Redis answered: "WRONGTYPE".
func code(text string) string {
	first, _, _ := strings.Cut(reason(text), " ")
	return first
}

// outcomeOf sorts what Redis answered: what may pass from what asking again will
// not mend. Either way nothing was done.
func outcomeOf(code string) redisop.Outcome {
	switch code {
	case "LOADING", "READONLY", "OOM", "BUSY", "MISCONF", "NOREPLICAS",
		"CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOSCRIPT", "NOAUTH":
		return redisop.Retryable
	}
	return redisop.Refused
}

// endsSession reports whether a connection that replies with code must be made again: the server
// has become a replica, and the address may lead to another one by now; or the user is no longer
// known. A server that loads while it is connected replaces its data by those of its master.
func endsSession(code string) bool {
	return code == "READONLY" || code == "MASTERDOWN" || code == "LOADING" || code == "NOAUTH"
}

// notALock is the sentence for a lock whose key has another type.
func (d *dialer) notALock(name, what string) string {
	key := strconv.Quote(name)
	if d.keys.prefix != "" {
		key = fmt.Sprintf("the key %q of the lock %q", d.keys.key(name), name)
	}
	return fmt.Sprintf("in Redis at %s, %s is %s; find out which program wrote it, and choose another name for the lock or delete the key", d.address, key, what)
}

// demoted is the sentence for a master that has become a replica, and keeps its clients.
func (d *dialer) demoted(answer string) string {
	return fmt.Sprintf("Redis at %s has become a read-only replica; %s%s", d.address, failingOver, answer)
}

// answered is the sentence for an operation on name that Redis answered with text.
func (d *dialer) answered(name, text string) string {
	text = clip(text)
	c, _, _ := strings.Cut(text, " ")
	switch c {
	case "WRONGTYPE":
		return d.notACounter(name, text)
	case "NOPERM":
		if !deniesKey(text) {
			return fmt.Sprintf("Redis at %s does not permit this user a command that the lock %q needs; let its ACL have +evalsha and the commands of the scripts (%s)", d.address, name, text)
		}
		return fmt.Sprintf("Redis at %s does not permit this user the lock %q; let its ACL have the keys %q and %q (%s)",
			d.address, name, d.keys.key(name), d.keys.counter(name), text)
	case "READONLY":
		return d.demoted(" (" + text + ")")
	case "MASTERDOWN":
		return fmt.Sprintf("Redis at %s has become a replica, and has lost its master; %s (%s)", d.address, failingOver, text)
	case "CLUSTERDOWN":
		if strings.HasPrefix(text, "CLUSTERDOWN The cluster is down") {
			return fmt.Sprintf("Redis at %s serves no lock, because the Cluster is down: slots have no master that is alive, or too few masters see each other; with cluster-require-full-coverage no, masters that are alive serve the locks of their slots; see CLUSTER INFO (%s)", d.address, text)
		}
		return fmt.Sprintf("Redis at %s serves no lock of the slot %d, which %q has: no master of the Cluster has it; see CLUSTER INFO (%s)", d.address, d.keys.slotOf(name), name, text)
	case "LOADING":
		return fmt.Sprintf("Redis at %s is loading its data; wait until it has (%s)", d.address, text)
	case "OOM":
		return fmt.Sprintf("Redis at %s is out of memory; raise maxmemory or free some (%s)", d.address, text)
	case "MISCONF":
		return fmt.Sprintf("Redis at %s refuses writes because it cannot save to disk; see its log (%s)", d.address, text)
	case "NOREPLICAS":
		return fmt.Sprintf("Redis at %s has too few replicas to accept writes (%s)", d.address, text)
	case "NOSCRIPT":
		return fmt.Sprintf("Redis at %s does not know our scripts (%s)", d.address, text)
	case "BUSY":
		return fmt.Sprintf("Redis at %s is busy with a slow script (%s)", d.address, text)
	case "MOVED", "ASK", "CROSSSLOT", "TRYAGAIN":
		if d.isNode {
			return fmt.Sprintf("Redis at %s does not serve the slot %d of the lock %q at this moment: it is on its way to another node of the Cluster (%s)", d.address, d.keys.slotOf(name), name, text)
		}
		return fmt.Sprintf("Redis at %s is a node of a Cluster, and does not serve this lock; write redis+cluster:// instead of redis:// (%s)", d.address, text)
	}
	if deniedInScript(text) {
		return fmt.Sprintf("Redis at %s does not permit this user a command that the lock %q needs; let its ACL have the commands of the scripts (%s)",
			d.address, name, text)
	}
	switch {
	case strings.Contains(text, "Unknown Redis command"): // Redis does not say which one
		return fmt.Sprintf("Redis at %s does not know a command that the lock %q needs, such as HDEL, INCRBY or PEXPIRE: remove its rename-command from redis.conf; docs/redis-commands.md has all (%s)", d.address, name, text)
	case strings.Contains(text, "value is not an integer"):
		return d.notACounter(name, text)
	}
	return fmt.Sprintf("Redis at %s refuses the lock %q: %s", d.address, name, text)
}

// notACounter is the sentence for a token counter with which Redis cannot count, as text says.
func (d *dialer) notACounter(name, text string) string {
	return fmt.Sprintf("the token counter %q of the lock %q in Redis at %s holds something that is not a counter; find out which program wrote it, and choose another name or delete the key (%s)",
		d.keys.counter(name), name, d.address, text)
}

// deniedInScript reports whether an error says that the ACL denies a command inside of a
// script. Redis gives it the code ERR, and since 7.2 another text.
func deniedInScript(text string) bool {
	return strings.Contains(text, "The user executing the script can't run this command") ||
		strings.Contains(text, "ACL failure in script")
}

// broken is the sentence for a connection that failed with err while in use.
func (d *dialer) broken(err error) string {
	var strange *unexpectedReply
	var timeout net.Error
	switch {
	case errors.As(err, &strange), errors.Is(err, errStrange):
		return fmt.Sprintf("Redis at %s cannot be understood: %v", d.address, err)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("Redis at %s did not answer within %v", d.address, d.timeout)
	case errors.Is(err, net.ErrClosed):
		return fmt.Sprintf("the connection to Redis at %s was given up", d.address)
	case isEOF(err):
		return fmt.Sprintf("Redis at %s closed the connection", d.address)
	}
	if why := d.alerted(err); why != "" {
		return why
	}
	return fmt.Sprintf("the connection to Redis at %s broke: %s", d.address, d.scrub(err))
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (d *dialer) dialError(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return unavailablef("the host of Redis at %s cannot be found (%s); check the name in the Redis URL", d.address, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return unavailablef("Redis at %s refuses connections; check that it runs and listens there", d.address)
	case d.options.Network == "unix" && errors.Is(err, os.ErrNotExist):
		return unavailablef("there is no Redis socket at %s; check that Redis runs with \"unixsocket %s\"", d.address, d.address)
	case errors.Is(err, os.ErrPermission):
		return unavailablef("this user may not open the Redis socket at %s; see unixsocketperm in redis.conf", d.address)
	case errors.As(err, &timeout) && timeout.Timeout():
		return unavailablef("Redis at %s did not accept a connection within %v; check the address and any firewall", d.address, d.options.DialTimeout)
	}
	return unavailablef("Redis at %s cannot be reached: %s", d.address, d.scrub(err))
}

func (d *dialer) tlsError(err error) error {
	var record tls.RecordHeaderError
	if errors.As(err, &record) || isEOF(err) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		// A Redis without TLS takes the greeting for half a line and waits.
		return unavailablef("Redis at %s does not answer in TLS on this port; name its TLS port, or write redis:// instead of rediss://", d.address)
	}
	if why := d.untrusted(err); why != "" {
		return unavailableError(why)
	}
	if why := d.alerted(err); why != "" {
		return unavailableError(why)
	}
	return unavailablef("TLS with Redis at %s failed: %s", d.address, d.scrub(err))
}

// handshakeError is for a connection that was made but on which Redis cannot be
// used yet.
func (d *dialer) handshakeError(err error) error {
	if !isReply(err) && !isEOF(err) {
		return unavailableError(d.broken(err))
	}
	text := err.Error()
	user := "the default user"
	if d.options.Username != "" {
		user = fmt.Sprintf("user %q", d.options.Username)
	}
	switch {
	case isEOF(err) && d.options.TLSConfig != nil:
		return unavailablef("Redis at %s closed the TLS connection before it said anything; it may not accept the certificate of this sidecar (redis-cert and redis-key; see the log of Redis), or have no connection to spare (maxclients)", d.address)
	case isEOF(err):
		return unavailablef("Redis at %s closed the connection before it said anything; it is ending, wants TLS (write rediss://), or has no connection to spare (maxclients)", d.address)
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		return unavailablef("Redis at %s does not accept the password of %s; check the Redis URL", d.address, user)
	case strings.Contains(text, "NOAUTH"):
		return unavailablef("Redis at %s wants a password; put it into the Redis URL, as in redis://user:password@host", d.address)
	case strings.Contains(text, "LOADING"):
		return d.loading()
	case strings.Contains(text, "DB index"), strings.Contains(text, "invalid DB"):
		return unavailablef("Redis at %s has no database %d; check the Redis URL", d.address, d.options.DB)
	case d.unwelcome(text) != nil:
		return d.unwelcome(text)
	case strings.Contains(text, "NOPERM"):
		return unavailablef("Redis at %s does not permit %s what locksidecar needs; let its ACL have +time +evalsha +eval +script|load and the commands of the scripts (%s)",
			d.address, user, clip(d.scrub(err)))
	}
	return unavailablef("Redis at %s does not accept us: %s", d.address, clip(d.scrub(err)))
}

// unwelcome is for a Redis that has said text and closed the connection, whoever the client is; nil: it is
// another text.
func (d *dialer) unwelcome(text string) error {
	switch {
	case strings.Contains(text, "max number of clients"):
		return unavailablef("Redis at %s has no connection to spare (max number of clients); raise its maxclients", d.address)
	case strings.Contains(text, "protected mode"):
		return unavailablef("Redis at %s is in protected mode, and accepts connections of its own host only; let it require a password, and put that into the Redis URL", d.address)
	}
	return nil
}

func (d *dialer) loading() error {
	return unavailablef("Redis at %s is loading its data; waiting until it has", d.address)
}

// noRESP3 is for a server that did not switch to RESP3.
func (d *dialer) noRESP3(answer reply) error {
	why := "it answers in RESP2"
	if answer.kind == '-' {
		why = clip(answer.text)
	}
	return unavailablef("Redis at %s does not speak RESP3 (HELLO 3): locksidecar needs it, which Redis has since version 6; a proxy in between may be the reason (%s)", d.address, why)
}

// scriptError is for a Redis that does not run our scripts.
func (d *dialer) scriptError(err error) error {
	switch code(err.Error()) {
	case "NOPERM":
		return unavailablef("Redis at %s does not permit this user to run scripts; let its ACL have +evalsha, and +script|load or +eval (%s)", d.address, clip(err.Error()))
	case "NOSCRIPT":
		return unavailablef("Redis at %s does not permit this user to load scripts; let its ACL have +script|load or +eval", d.address)
	}
	return d.handshakeError(err)
}

// scrub is the text of err without the password, should a server repeat it.
func (d *dialer) scrub(err error) string {
	text := err.Error()
	if d.options.Password != "" {
		text = strings.ReplaceAll(text, d.options.Password, "…")
	}
	return text
}

// clip shortens a server's text to a length fit for a log line.
func clip(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return readable(text)
}

package wire

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What Redis answers becomes two things here: an Outcome, for the table, and a sentence that names the
// address and says what to do, for people.

// Server is what sentences name.
type Server struct {
	Address string // for people; never the password
	Keys    Keyspace
	IsNode  bool // of a Cluster
}

// Unavailable is an error whose text is a whole sentence for an operator, not a part of
// another program's.
type Unavailable string

func (o Unavailable) Error() string { return string(o) }

// Unavailablef returns an Unavailable.
func Unavailablef(format string, args ...any) error {
	return Unavailable(fmt.Sprintf(format, args...))
}

// Reason is an error that Redis answered, with its code first. An error that is
// raised inside of a script is told by Redis 6.2 as "@user_script: 64: -OOM command
// not allowed…". Of a key that a script deleted while its slot is on its way to another node of a
// Cluster, Redis says without a code of its own that it is not local.
func Reason(text string) string {
	if t := strings.TrimPrefix(text, "ERR "); strings.HasPrefix(t, notLocal) || strings.HasSuffix(t, ": "+notLocal) {
		return "TRYAGAIN " + notLocal
	}
	if where, rest, ok := strings.Cut(text, ": -"); ok && strings.HasPrefix(where, "@user_script: ") {
		return strings.TrimSpace(rest)
	}
	return text
}

const notLocal = "Script attempted to access a non local key in a cluster node"

// Code is the first word of an error that Redis answered: "WRONGTYPE".
func Code(text string) string {
	first, _, _ := strings.Cut(Reason(text), " ")
	return first
}

// OutcomeOf sorts what Redis answered: what may pass from what asking again will
// not mend. Either way nothing was done.
func OutcomeOf(code string) redisop.Outcome {
	switch code {
	case "LOADING", "READONLY", "OOM", "BUSY", "MISCONF", "NOREPLICAS",
		"CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "NOSCRIPT", "NOAUTH":
		return redisop.Retryable
	}
	return redisop.Refused
}

// EndsConnection reports whether a connection that replies with code must be made again: the server
// has become a replica, and the address may lead to another one by now; or the user is no longer
// known. A server that loads while it is connected replaces its data by those of its master.
func EndsConnection(code string) bool {
	return code == "READONLY" || code == "MASTERDOWN" || code == "LOADING" || code == "NOAUTH"
}

// FailingOver is what a replica means at an address that should lead to a master.
func (s *Server) FailingOver() string {
	if s.IsNode {
		return "its slots are at another master, which the nodes of the Cluster name"
	}
	return "an endpoint that fails over leads to the master soon; if it does not, point redis to the master"
}

// NotALock is the sentence for a lock whose key has another type.
func (s *Server) NotALock(name, what string) string {
	key := strconv.Quote(name)
	if s.Keys.Prefix != "" {
		key = fmt.Sprintf("the key %q of the lock %q", s.Keys.Key(name), name)
	}
	return fmt.Sprintf("in Redis at %s, %s is %s; find out which program wrote it, and choose another name for the lock or delete the key", s.Address, key, what)
}

// Demoted is the sentence for a master that has become a replica, and keeps its clients.
func (s *Server) Demoted(answer string) string {
	return fmt.Sprintf("Redis at %s has become a read-only replica; %s%s", s.Address, s.FailingOver(), answer)
}

// Answered is the sentence for an operation on the name of a lock of a kind that Redis answered with text.
func (s *Server) Answered(kind redisop.LockKind, name, text string) string {
	text = Clip(text)
	c, _, _ := strings.Cut(text, " ")
	switch c {
	case "WRONGTYPE":
		return s.notACounter(name, text)
	case "NOPERM":
		if !DeniesKey(text) {
			return fmt.Sprintf("Redis at %s does not permit this user a command that the lock %q needs; let its ACL have +evalsha and the commands of the scripts (%s)", s.Address, name, text)
		}
		if kind == redisop.KindPermits {
			return fmt.Sprintf("Redis at %s does not permit this user the semaphore %q; let its ACL have the key %q and the keys %s (%s)",
				s.Address, name, s.Keys.Key(name), s.Keys.QueuePatterns(), text)
		}
		return fmt.Sprintf("Redis at %s does not permit this user the lock %q; let its ACL have the keys %q and %q (%s)",
			s.Address, name, s.Keys.Key(name), s.Keys.Counter(name), text)
	case "READONLY":
		return s.Demoted(" (" + text + ")")
	case "MASTERDOWN":
		return fmt.Sprintf("Redis at %s has become a replica, and has lost its master; %s (%s)", s.Address, s.FailingOver(), text)
	case "CLUSTERDOWN":
		if strings.HasPrefix(text, "CLUSTERDOWN The cluster is down") {
			return fmt.Sprintf("Redis at %s serves no lock, because the Cluster is down: slots have no master that is alive, too few masters see each other, or this node started seconds ago; with cluster-require-full-coverage no, masters that are alive serve the locks of their slots; see CLUSTER INFO (%s)", s.Address, text)
		}
		return fmt.Sprintf("Redis at %s serves no lock of the slot %d, which %q has: no master of the Cluster has it; see CLUSTER INFO (%s)", s.Address, s.Keys.SlotOf(name), name, text)
	case "LOADING":
		return fmt.Sprintf("Redis at %s is loading its data; wait until it has (%s)", s.Address, text)
	case "OOM":
		return fmt.Sprintf("Redis at %s is out of memory; raise maxmemory or free some (%s)", s.Address, text)
	case "MISCONF":
		return fmt.Sprintf("Redis at %s refuses writes because it cannot save to disk; see its log (%s)", s.Address, text)
	case "NOREPLICAS":
		return fmt.Sprintf("Redis at %s has too few replicas to accept writes (%s)", s.Address, text)
	case "NOSCRIPT":
		return fmt.Sprintf("Redis at %s does not know our scripts (%s)", s.Address, text)
	case "BUSY":
		return fmt.Sprintf("Redis at %s is busy with a slow script (%s)", s.Address, text)
	case "MOVED", "ASK", "CROSSSLOT", "TRYAGAIN":
		if s.IsNode {
			return fmt.Sprintf("Redis at %s does not serve the slot %d of the lock %q at this moment: it is on its way to another node of the Cluster (%s)", s.Address, s.Keys.SlotOf(name), name, text)
		}
		return fmt.Sprintf("Redis at %s is a node of a Cluster, and does not serve this lock; write redis+cluster:// instead of redis:// (%s)", s.Address, text)
	}
	if DeniedInScript(text) {
		return fmt.Sprintf("Redis at %s does not permit this user a command that the lock %q needs; let its ACL have the commands of the scripts (%s)",
			s.Address, name, text)
	}
	switch {
	case strings.Contains(text, "Unknown Redis command"): // Redis does not say which one
		return fmt.Sprintf("Redis at %s does not know a command that the lock %q needs, such as HDEL, INCRBY or PEXPIRE: remove its rename-command from redis.conf; docs/redis-commands.md has all (%s)", s.Address, name, text)
	case strings.Contains(text, "value is not an integer"):
		return s.notACounter(name, text)
	}
	return fmt.Sprintf("Redis at %s refuses the lock %q: %s", s.Address, name, text)
}

// notACounter is the sentence for a token counter with which Redis cannot count, as text says.
func (s *Server) notACounter(name, text string) string {
	return fmt.Sprintf("the token counter %q of the lock %q in Redis at %s holds something that is not a counter; find out which program wrote it, and choose another name or delete the key (%s)",
		s.Keys.Counter(name), name, s.Address, text)
}

// Lacks is the sentence for a Redis that refuses commands, the first of them with text.
func (s *Server) Lacks(permissions []string, text string) string {
	names := strings.ReplaceAll(strings.Join(permissions, ", "), "+", "")
	if strings.Contains(text, "Unknown Redis command") {
		return fmt.Sprintf("Redis at %s does not know %s, which locks need: remove its rename-command from redis.conf (%s)", s.Address, names, Clip(text))
	}
	return fmt.Sprintf("Redis at %s does not permit this user %s, which acquires or renewals need; let its ACL have %s (%s)",
		s.Address, names, strings.Join(permissions, " "), Clip(text))
}

// Degraded is the sentence for a Redis that refused a probe with text.
func (s *Server) Degraded(text string) string {
	text = Clip(text)
	switch {
	case DeniesKey(text):
		prefix := s.Keys.literalPrefix()
		return fmt.Sprintf("Redis at %s does not permit this user the keys of locks; let its ACL have the keys ~%s* and ~%s* (%s)",
			s.Address, prefix, CounterPrefix, text)
	case Code(text) == "NOPERM", DeniedInScript(text):
		return fmt.Sprintf("Redis at %s does not permit this user a command that acquires need; let its ACL have the commands of the scripts (%s)", s.Address, text)
	}
	return s.Answered(redisop.KindLock, ProbeLock, text)
}

// DeniesKey reports whether an error says that the ACL denies a key.
func DeniesKey(text string) bool {
	return strings.Contains(text, "access") && strings.Contains(text, "key")
}

// DeniedInScript reports whether an error says that the ACL denies a command inside of a
// script. Redis gives it the code ERR, and since 7.2 another text.
func DeniedInScript(text string) bool {
	return strings.Contains(text, "The user executing the script can't run this command") ||
		strings.Contains(text, "ACL failure in script")
}

// Clip shortens a server's text to a length fit for a log line.
func Clip(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return readable(text)
}

// readable makes text that another program has written to Redis fit for messages, logs
// and terminals: valid UTF-8 without control characters.
func readable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

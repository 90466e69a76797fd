package store

// origin is the server that executed a script, as messages name it: the first 8 digits of the run
// id of the process, which is a random number. The zero value is not known: an older sidecar
// names none, and a server may not tell its run id.
//
// Replication carries messages to the replicas of a server. A server that was a master before, and
// has kept its clients, passes on what its new master publishes. The script of that master
// counted none of these receivers, and gave the lock to the next ticket. The origin shows it.
type origin struct {
	digits  [originDigits]byte
	isKnown bool
}

const originDigits = 8

// noOrigin is the text of an origin that is not known.
const noOrigin = "-"

// originOf returns the origin of a server with a run id and a role. Only a master executes the
// scripts that send messages.
func originOf(runID, role string) origin {
	if len(runID) < originDigits || role != "master" {
		return origin{}
	}
	o, _ := parseOrigin(runID[:originDigits])
	return o
}

// parseOrigin reads the text of an origin.
func parseOrigin(text string) (o origin, ok bool) {
	if text == noOrigin {
		return origin{}, true
	}
	if len(text) != originDigits {
		return origin{}, false
	}
	for i := range text {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return origin{}, false
		}
		o.digits[i] = text[i]
	}
	o.isKnown = true
	return o, true
}

// isSame reports whether both are known, and are one server.
func (o origin) isSame(other origin) bool { return o.isKnown && o == other }

func (o origin) String() string {
	if !o.isKnown {
		return noOrigin
	}
	return string(o.digits[:])
}

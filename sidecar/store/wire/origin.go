package wire

// Origin is the server that executed a script, as messages name it: the first 8 digits of the run
// id of the process, which is a random number. The zero value is not known: an older sidecar
// names none, and a server may not tell its run id.
//
// Replication carries messages to the replicas of a server. A server that was a master before, and
// has kept its clients, passes on what its new master publishes. The script of that master
// counted none of these receivers, and gave the lock to the next ticket. The origin shows it.
type Origin struct {
	digits  [originDigits]byte
	IsKnown bool
}

const originDigits = 8

// NoOrigin is the text of an origin that is not known.
const NoOrigin = "-"

// OriginOf returns the origin of a server with a run id and a role. Only a master executes the
// scripts that send messages.
func OriginOf(runID, role string) Origin {
	if len(runID) < originDigits || role != "master" {
		return Origin{}
	}
	o, _ := parseOrigin(runID[:originDigits])
	return o
}

// parseOrigin reads the text of an origin.
func parseOrigin(text string) (o Origin, ok bool) {
	if text == NoOrigin {
		return Origin{}, true
	}
	if len(text) != originDigits {
		return Origin{}, false
	}
	for i := range text {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Origin{}, false
		}
		o.digits[i] = text[i]
	}
	o.IsKnown = true
	return o, true
}

// IsSame reports whether both are known, and are one server.
func (o Origin) IsSame(other Origin) bool { return o.IsKnown && o == other }

func (o Origin) String() string {
	if !o.IsKnown {
		return NoOrigin
	}
	return string(o.digits[:])
}

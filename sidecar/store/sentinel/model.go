// Package sentinel decides what the Sentinels of a URL say: which of them count, which server is the master, and which
// failovers they lead. It is pure: a round of answers and the time come in. The store asks them, and receives what they
// publish.
package sentinel

import (
	"errors"
	"time"
)

const (
	// trustLast is how long the last address counts while no Sentinel answers: the default lease, after
	// which no lock of the time before is left.
	trustLast = int64(30 * time.Second)

	// maxSentinels bounds the Sentinels that are asked.
	maxSentinels = 64

	// missesReported is in how many rounds in a row no majority answers before that is reported.
	missesReported = 2
)

// Group is what is known of the Sentinels of one master. It has one user at a time.
type Group struct {
	Master  string             // its name
	members map[string]*Member // by address
	closed  bool

	last   string // the address that was found last
	lastAt int64  // when

	failovers map[*Member]*failover // that Sentinels lead, as they announced

	count  Count // as of the last round
	misses int   // rounds in a row in which no majority answered

	isDisagreed bool   // that the Sentinels name different masters was noted
	isDenied    bool   // that a Sentinel does not permit a question was noted
	notes       []Note // not taken yet
}

// A Member is one Sentinel.
type Member struct {
	Address string
	runID   string // that it was learned with, or had first; "": it is not known
	isSeed  bool   // the URL has it; others are learned
}

// View is what one Sentinel answered.
type View struct {
	Member *Member
	RunID  string // of the Sentinel; "": it does not say
	Master string // the address of the master
	Epoch  int64  // of the configuration: an election of a majority of the Sentinels raises it
	IsDown bool   // enough Sentinels agree that the master is down
	Lead   Lead   // whether it leads a failover
	Peers  []Peer
	Err    error // it does not name a master

	Denied error // what this user may not ask, beside the name of the master
}

// Peer is a Sentinel that another one knows.
type Peer struct {
	RunID, Address string
	IsDown         bool
}

// Count is how many Sentinels there are, and how many of them named the master in the last round. Those that
// end stay known to the others, and are counted: a failover needs a majority of all.
type Count struct{ Known, Answering int }

// HasMajority reports whether so many answer as a failover needs.
func (c Count) HasMajority() bool { return 2*c.Answering > c.Known }

// Verdict is what a round of answers says.
type Verdict struct {
	Master   string // the address of the master; "": none of the Sentinels that count names one
	IsAgreed bool   // all name it
	IsDown   bool   // as most of those that name it see it, it is down
	IsLed    bool   // one that names it leads a failover: it promoted that server, and the others are about to learn it
}

// A Note is something for people, or that the server is about to be replaced.
type Note struct {
	Kind    Kind
	Text    string // Lost, Failover: the sentence that an operator reads; Disagree: who names which master
	Address string // Denied: of the Sentinel; Failover: of the master that is replaced, "": none is any more
	Err     error  // Denied
	Count   Count  // Back
}

// Kind says what a Note is about.
type Kind uint8

const (
	_        Kind = iota
	Denied        // a Sentinel does not permit a question
	Disagree      // the Sentinels name different masters
	Lost          // most of them do not answer
	Back          // they do again
	Failover      // one is about to replace the master; or none is any more
)

var (
	ErrNotWatched = errors.New("it does not watch this master")
	ErrStranger   = errors.New("it is of another group of Sentinels")
)

// Has reports whether a Sentinel is to be asked.
func (g *Group) Has(m *Member) bool { return g.members[m.Address] == m }

func (g *Group) note(n Note) { g.notes = append(g.notes, n) }

// Lead is whether a Sentinel leads a failover, as it answers.
type Lead uint8

const (
	LeadsNone Lead = iota
	LeadsFrom      // it does, and still names the master that is replaced
	LeadsTo        // it names the replica that it has promoted
)

// failover is one that a Sentinel leads.
type failover struct {
	address string // of the master that is replaced
	since   int64  // when it was announced
	heardAt int64  // when the Sentinel last said so
}

package sim

import "fmt"

// Situation is something that must happen in the runs of many seeds. A world in which
// little happens proves little.
type Situation uint8

const (
	FirstEntry Situation = iota
	ReEntry
	Handoff                // a grant that Redis learns of afterwards
	ExcusedOverlap         // two owners, because the key of the first was destroyed
	ExecutedLate           // an operation, after its table was told that its outcome is unknown
	ExecutedUnknown        // an operation, whose reply was lost
	KeptForOrphan          // a hold whose client is dead
	KeptAfterItsEnd        // a hold whose client has released or lost it
	KeepRenewed            // a hold whose keep lasts for longer than the lease
	KeepLost               // in Redis, or by force
	KeptWithoutSidecar     // by the key alone
	AssertedAfterDataLoss  // a hold
	CounterExpired         // a token counter
	TakePipelined          // after the Drop of the same lock
	DropRepliedAfterTake   // and the reply to the Drop came after that to the Take
	KeyExpiredEarly        // because Redis's clock jumped
	LowerTokenExcused      // a counter was lost while Redis's clock was behind
	LeaseEventBelowHold    // a lease event is above the deadline of some holds, and below that of others
	ConfirmedFree          // a release, while its Drop was in flight
	ConfirmedHandedOver    // a release, after which the lock passed to another owner here
	ClosedInParts          // a session that had more than is done at one time
	LossFoundByMessage     // a deletion, because a message came
	LossFoundInTime        // a deletion, by the next renewal or check
	FoundWrongType         // a key of another type under a hold
	DrawRefused            // for a hold, which was renewed all the same
	FirstListened          // the first ticket had waited for a program, and was subscribed when that released the lock
	FirstNotified          // a Drop found the lock of a program, and had the first ticket ask again
	PausedForPollers       // a lock was left free for clients that poll
	CounterBeganAboveClock // of Redis, at what its host knew
	FloorRaised            // of a connection, because its host got a token that is ahead of Redis's clock
	UnavailableInSilence   // an acquire, because Redis did not reply
	LockTransferred        // from one sidecar to the next in the queue
	RolesChanged           // another server is the master; hosts stay connected to the former one
	FailedOver             // a hold, to a replica that confirmed its lock and has less than the master had
	TakeNotSynced          // a Take that a replica did not confirm
	RenewNotSynced         // a Renew
	DropNotSynced          // a Drop
	ExecutedAtReplica      // an operation, which the former master refused or only read for
	TransferReplicated     // the message, by a former master
	TransferNotProved      // the message does not name the server that the ticket stands at
	TransferLost           // the message, because the connection of the receiver ended
	TransferAccepted       // by a host that waited for it
	TransferDoubted        // by a host whose ticket it was not, or that had an operation in flight
	DeadTicketSkipped      // because its sidecar was not reached
	OldTicketSkipped       // because its sidecar had not asked for long
	QueueLost              // with tickets
	Recalled               // a lock, of the sidecar that had it
	RecalledGhost          // a lock, of a sidecar that did not know to have it
	QueuedBehind           // all others, by a host that passed the lock on
	SlotOpened             // to be migrated key by key
	SlotAbandoned          // whose migration had begun
	OperationAsked         // an operation was answered ASK
	AskNotSent             // an operation, because the node that ASK named is not connected
	ExecutedAsking         // an operation, by the node to which its slot migrates
	PassedAsking           // the same, a Take or a Drop: all keys of its lock are there
	TriedAgain             // an operation was answered TRYAGAIN
	TransferAheadOfClock   // its tokens are not used: they are ahead of the clock of the node, or below what its host knows
	CounterLifted          // of a slot that came from a node whose clock is behind
	GrantedLingering       // a lock, which no operation was sent for since its last release
	GrantedInOrder         // of the acquires of all hosts
	HandedOverInOrder      // by a host that knows that no other one waits before
	PassedToItself         // a lock, by a host whose next acquire arrived before those of others
	TicketMoved            // to the arrival of the next acquire, because the first one is gone
	GrantedToNone          // a lock, after the acquire that it was taken for was answered
	OwnersDisagree         // a node answered MOVED, and the node that it names would name this one
	NumberReused           // that a node had which left the Cluster
	OldTopology            // a host took in what a node knows that has not learned of the last move
	SlotMigrated           // to another node, with its data
	NodeTakenOver          // by the spare
	NodeStalled            // for a time
	OperationMoved         // an operation reached a node that does not have its lock
	RoutedInFlight         // a host learned that a slot had moved while an operation was in flight at the node before
	RoutedHold             // a host learned that a slot had moved while a client had its lock
	SubscriptionEnded      // because its slot left the node
	TransferPassedOn       // the message, by a node that did not execute the transfer
	ClockReported          // of a node to which slots came
	FoundDead              // a connection, because the server was silent for too long
	GivenUpForOthers       // a hold whose shard does not renew it, so that those of the session's other shards last

	PermitsGranted
	PermitsGrantedHere   // by a host that has asked for nothing since others were released
	PermitsInBatch       // for several waiters of a host
	PermitsWhileMoving   // taken or given back while the slot of the semaphore is on its way, and all of its keys are at one node
	PermitsAdmitted      // to a host that waited
	PermitsNotReceived   // by a host that waited: no connection received the message
	PermitsOfOwnPlace    // a host's own operation found that it was its turn
	PermitsRecalled      // of a host that may have idle ones
	PermitsLost          // with what Redis had
	PermitsForced        // holds were ended by force
	PermitsForcedInParts // more than one step may end
	PermitsForcedLater   // what a process that was killed had not ended of them
	PermitsResent        // a request, by a client that resumed its session
	PermitsClaimed       // by a client that resumed its session

	// Of a read/write lock.
	ReaderGranted
	WriterGranted
	ReadersAdmitted // of another host
	WriterAdmitted
	ReadWriteLost // to another host, or what Redis had is gone
	HoldDowngraded

	KilledBeforeJournal      // a sidecar, with inputs that its journal does not have
	KilledInJournal          // between two calls of the journal
	KilledInEffects          // with effects of which only a part was carried out
	KilledInRestore          // before its first effects
	KilledInClaim            // of a client
	KilledInDoubt            // while it asserted its holds, after Redis lost its data
	Stopped                  // and finished
	StartedWithoutState      // a sidecar
	StartedWithinLease       // while a client believed in a hold
	StartedTooLate           // when everything in its journal had expired
	RestoredUnderOtherLease  // a hold, by a sidecar that has another lease configured
	RestoredHold             // in which its client believes
	RestoredDrop             // of a lock that was being released
	RestoredOrphan           // kept for its crash delay
	RestoredDetached         // a session that was not served any more
	GrantNotReceived         // by its client, because the sidecar was killed
	ReleaseNotReceived       // by the sidecar, because it was killed
	ClientDiedWhileDown      // while no sidecar ran
	ClientNotResumable       // and so its holds were left to expire
	ClaimedInPages           // by one client
	DisconnectedInClaim      // a client
	DiedInClaim              // a client
	ClaimedHold              // and got it
	ClaimedFewerEntries      // than the journal has
	UnclaimedHold            // was released
	ClaimedLost              // a hold that is gone
	LostInClaim              // a hold that had been claimed
	ExpiredInClaim           // a hold, by the clock of its client
	AcquireResent            // by a client that resumed its session
	ClientAbandoned          // because it did not return in time
	RenewedWhileDisconnected // a hold
	NewSessionAfterReturn    // because the former session was closed
	SuspendedPastLease       // a host
	JournalWholeAgain        // which had no room for a lock
	situations
)

var situationNames = [situations]string{
	FirstEntry:             "first-entry",
	ReEntry:                "re-entry",
	Handoff:                "handoff",
	ExcusedOverlap:         "excused-overlap",
	ExecutedLate:           "executed-late",
	ExecutedUnknown:        "executed-unknown",
	KeptForOrphan:          "kept-for-orphan",
	KeptAfterItsEnd:        "kept-after-its-end",
	KeepRenewed:            "keep-renewed",
	KeepLost:               "keep-lost",
	KeptWithoutSidecar:     "kept-without-sidecar",
	AssertedAfterDataLoss:  "asserted-after-data-loss",
	CounterExpired:         "counter-expired",
	TakePipelined:          "take-pipelined",
	DropRepliedAfterTake:   "drop-replied-after-take",
	KeyExpiredEarly:        "key-expired-early",
	LowerTokenExcused:      "lower-token-excused",
	LeaseEventBelowHold:    "lease-event-below-hold",
	ConfirmedFree:          "confirmed-free",
	ConfirmedHandedOver:    "confirmed-handed-over",
	ClosedInParts:          "closed-in-parts",
	LossFoundByMessage:     "loss-found-by-message",
	LossFoundInTime:        "loss-found-in-time",
	FoundWrongType:         "found-wrong-type",
	DrawRefused:            "draw-refused",
	FirstListened:          "first-listened",
	FirstNotified:          "first-notified",
	PausedForPollers:       "paused-for-pollers",
	CounterBeganAboveClock: "counter-began-above-clock",
	FloorRaised:            "floor-raised",
	UnavailableInSilence:   "unavailable-in-silence",
	LockTransferred:        "lock-transferred",
	RolesChanged:           "roles-changed",
	FailedOver:             "failed-over",
	TakeNotSynced:          "take-not-synced",
	RenewNotSynced:         "renew-not-synced",
	DropNotSynced:          "drop-not-synced",
	ExecutedAtReplica:      "executed-at-replica",
	TransferReplicated:     "transfer-replicated",
	TransferNotProved:      "transfer-not-proved",
	TransferLost:           "transfer-lost",
	TransferAccepted:       "transfer-accepted",
	TransferDoubted:        "transfer-doubted",
	DeadTicketSkipped:      "dead-ticket-skipped",
	OldTicketSkipped:       "old-ticket-skipped",
	QueueLost:              "queue-lost",
	Recalled:               "recalled",
	RecalledGhost:          "recalled-ghost",
	QueuedBehind:           "queued-behind",
	SlotOpened:             "slot-opened",
	SlotAbandoned:          "slot-abandoned",
	OperationAsked:         "operation-asked",
	AskNotSent:             "ask-not-sent",
	ExecutedAsking:         "executed-asking",
	PassedAsking:           "passed-asking",
	TriedAgain:             "tried-again",
	TransferAheadOfClock:   "transfer-ahead-of-clock",
	CounterLifted:          "counter-lifted",
	GrantedLingering:       "granted-lingering",
	GrantedInOrder:         "granted-in-order",
	HandedOverInOrder:      "handed-over-in-order",
	PassedToItself:         "passed-to-itself",
	TicketMoved:            "ticket-moved",
	GrantedToNone:          "granted-to-none",
	OwnersDisagree:         "owners-disagree",
	NumberReused:           "number-reused",
	OldTopology:            "old-topology",
	SlotMigrated:           "slot-migrated",
	NodeTakenOver:          "node-taken-over",
	NodeStalled:            "node-stalled",
	OperationMoved:         "operation-moved",
	RoutedInFlight:         "routed-in-flight",
	RoutedHold:             "routed-hold",
	SubscriptionEnded:      "subscription-ended",
	TransferPassedOn:       "transfer-passed-on",
	ClockReported:          "clock-reported",
	FoundDead:              "found-dead",
	GivenUpForOthers:       "given-up-for-others",

	PermitsGranted:       "permits-granted",
	PermitsGrantedHere:   "permits-granted-here",
	PermitsInBatch:       "permits-in-batch",
	PermitsWhileMoving:   "permits-while-moving",
	PermitsAdmitted:      "permits-admitted",
	PermitsNotReceived:   "permits-not-received",
	PermitsOfOwnPlace:    "permits-of-own-place",
	PermitsRecalled:      "permits-recalled",
	PermitsLost:          "permits-lost",
	PermitsForced:        "permits-forced",
	PermitsForcedInParts: "permits-forced-in-parts", PermitsForcedLater: "permits-forced-later", PermitsResent: "permits-resent",
	PermitsClaimed: "permits-claimed",

	ReaderGranted: "reader-granted", WriterGranted: "writer-granted", ReadersAdmitted: "readers-admitted", WriterAdmitted: "writer-admitted", ReadWriteLost: "read-write-lost", HoldDowngraded: "hold-downgraded",

	KilledBeforeJournal:      "killed-before-journal",
	KilledInJournal:          "killed-in-journal",
	KilledInEffects:          "killed-in-effects",
	KilledInRestore:          "killed-in-restore",
	KilledInClaim:            "killed-in-claim",
	KilledInDoubt:            "killed-in-doubt",
	Stopped:                  "stopped",
	StartedWithoutState:      "started-without-state",
	StartedWithinLease:       "started-within-lease",
	StartedTooLate:           "started-too-late",
	RestoredUnderOtherLease:  "restored-under-other-lease",
	RestoredHold:             "restored-hold",
	RestoredDrop:             "restored-drop",
	RestoredOrphan:           "restored-orphan",
	RestoredDetached:         "restored-detached",
	GrantNotReceived:         "grant-not-received",
	ReleaseNotReceived:       "release-not-received",
	ClientDiedWhileDown:      "client-died-while-down",
	ClientNotResumable:       "client-not-resumable",
	ClaimedInPages:           "claimed-in-pages",
	DisconnectedInClaim:      "disconnected-in-claim",
	DiedInClaim:              "died-in-claim",
	ClaimedHold:              "claimed-hold",
	ClaimedFewerEntries:      "claimed-fewer-entries",
	UnclaimedHold:            "unclaimed-hold",
	ClaimedLost:              "claimed-lost",
	LostInClaim:              "lost-in-claim",
	ExpiredInClaim:           "expired-in-claim",
	AcquireResent:            "acquire-resent",
	ClientAbandoned:          "client-abandoned",
	RenewedWhileDisconnected: "renewed-while-disconnected",
	NewSessionAfterReturn:    "new-session-after-return",
	SuspendedPastLease:       "suspended-past-lease",
	JournalWholeAgain:        "journal-whole-again",
}

func (s Situation) String() string {
	if s < situations {
		return situationNames[s]
	}
	return fmt.Sprintf("situation %d", uint8(s))
}

// Met is how often each situation was met.
type Met [situations]int

func (m *Met) meet(s Situation) { m[s]++ }

func (m *Met) meetIf(s Situation, is bool) { m[s] += btoi(is) }

package protocol

// field is a key of a message, or of a map in a message. The meaning of a field depends on the
// map: a known key in a map that does not define it is ignored like an unknown one.
type field uint8

const (
	_ field = iota

	fieldID
	fieldOp
	fieldEv
	fieldErr

	fieldV
	fieldClient
	fieldResumable
	fieldResume
	fieldName
	fieldOwner
	fieldReentrant
	fieldFair
	fieldWaitMS
	fieldLeaseMS
	fieldMaxHoldMS
	fieldCrashDelayMS
	fieldKeepMS
	fieldShared
	fieldPermits
	fieldCapacity
	fieldHold
	fieldCutShort
	fieldTarget
	fieldAfter
	fieldHolds
	fieldMore
	fieldWait

	fieldCode
	fieldMsg
	fieldSidecar
	fieldVersion
	fieldSession
	fieldNowNS
	fieldTicket
	fieldResumed
	fieldToken
	fieldCount
	fieldDeadlineNS
	fieldEndNS
	fieldCanceled
	fieldLock
	fieldLocks
	fieldNext
	fieldRedis
	fieldDegraded
	fieldRedisAddress
	fieldRedisRunID
	fieldRedisRisk
	fieldBuild
	fieldKeyPrefix
	fieldReason
	fieldText

	fieldState
	fieldPID
	fieldUID
	fieldCmd
	fieldHeldMS
	fieldAbsent
	fieldAbsentMS
	fieldAbsentLeftMS
	fieldOrphan
	fieldKeepLeftMS
	fieldRemoteField
	fieldRemoteTTLMS
	fieldRemoteHost
	fieldHost
	fieldHosts
	fieldAfterHost
	fieldStartedMS
	fieldWaiting
	fieldWaiters
	fieldWaitedMS

	fieldEvents
	fieldMissed
	fieldHidden
	fieldAtNS
	fieldKind

	fieldStartedNS
	fieldRoundTripNS
	fieldTrouble
	fieldSessions
	fieldHeld
	fieldOldestWaiter
	fieldOldestHold
	fieldAgeMS
	fieldRenewalsLate
	fieldLost
	fieldRestart
	fieldEnded
	fieldBack
	fieldAway
	fieldGrants

	fieldKey
	fieldTTLMS
	fieldOwners
	fieldQueue
	fieldQueued
	fieldHolder
	fieldHolders
	fieldField
	fieldEntries
	fieldPassed

	fieldSlot
	fieldShard
	fieldShards
	fieldShardCount
	fieldAddress
	fieldSlots
	fieldUnsent

	fields // the number of fields
)

var fieldNames = [fields]string{
	fieldID: "id", fieldOp: "op", fieldEv: "ev", fieldErr: "err",
	fieldV: "v", fieldClient: "client", fieldResumable: "resumable", fieldResume: "resume",
	fieldName: "name", fieldOwner: "owner",
	fieldReentrant: "reentrant", fieldFair: "fair", fieldWaitMS: "wait_ms", fieldLeaseMS: "lease_ms",
	fieldMaxHoldMS: "max_hold_ms", fieldCrashDelayMS: "crash_delay_ms", fieldKeepMS: "keep_ms", fieldShared: "shared", fieldPermits: "permits", fieldCapacity: "of",
	fieldHold: "hold", fieldCutShort: "cut_short", fieldTarget: "target", fieldAfter: "after", fieldHolds: "holds", fieldMore: "more", fieldWait: "wait",
	fieldCode: "code", fieldMsg: "msg", fieldSidecar: "sidecar", fieldVersion: "version",
	fieldSession: "session", fieldNowNS: "now_ns", fieldTicket: "ticket", fieldResumed: "resumed",
	fieldToken: "token", fieldCount: "count",
	fieldDeadlineNS: "deadline_ns", fieldEndNS: "end_ns", fieldCanceled: "canceled", fieldLock: "lock",
	fieldLocks: "locks", fieldNext: "next", fieldRedis: "redis", fieldReason: "reason", fieldText: "text",
	fieldDegraded: "degraded", fieldRedisAddress: "redis_address", fieldRedisRunID: "redis_run_id", fieldRedisRisk: "redis_risk", fieldBuild: "build", fieldKeyPrefix: "key_prefix",
	fieldState: "state", fieldPID: "pid", fieldUID: "uid", fieldCmd: "cmd",
	fieldHeldMS: "held_ms", fieldAbsent: "absent", fieldAbsentMS: "absent_ms", fieldAbsentLeftMS: "absent_left_ms", fieldOrphan: "orphan", fieldKeepLeftMS: "keep_left_ms", fieldRemoteField: "remote_field",
	fieldRemoteTTLMS: "remote_ttl_ms", fieldWaiting: "waiting", fieldWaiters: "waiters",
	fieldWaitedMS: "waited_ms",
	fieldEvents:   "events", fieldMissed: "missed", fieldHidden: "hidden", fieldAtNS: "at_ns", fieldKind: "kind",
	fieldStartedNS: "started_ns", fieldRoundTripNS: "roundtrip_ns", fieldTrouble: "trouble", fieldSessions: "sessions", fieldHeld: "held", fieldOldestWaiter: "oldest_waiter", fieldOldestHold: "oldest_hold",
	fieldAgeMS: "age_ms", fieldRenewalsLate: "renewals_late", fieldLost: "lost", fieldRestart: "restart", fieldEnded: "ended", fieldBack: "back", fieldAway: "away", fieldGrants: "grants",
	fieldKey: "key", fieldTTLMS: "ttl_ms", fieldOwners: "owners", fieldQueue: "queue", fieldQueued: "queued", fieldHolder: "holder", fieldHolders: "holders", fieldField: "field", fieldEntries: "entries", fieldPassed: "passed",
	fieldSlot: "slot", fieldShard: "shard", fieldShards: "shards", fieldShardCount: "shard_count", fieldAddress: "address", fieldSlots: "slots", fieldUnsent: "unsent",
	fieldRemoteHost: "remote_host", fieldHost: "host", fieldHosts: "hosts", fieldAfterHost: "after_host", fieldStartedMS: "started_ms",
}

func (f field) String() string { return fieldNames[f] }

// fieldOf returns the field of a key; 0: no message has it. It is the inverse of fieldNames; a
// switch is several times faster than a map.
func fieldOf(key []byte) field {
	switch string(key) {
	case "id":
		return fieldID
	case "op":
		return fieldOp
	case "ev":
		return fieldEv
	case "err":
		return fieldErr
	case "v":
		return fieldV
	case "client":
		return fieldClient
	case "resumable":
		return fieldResumable
	case "resume":
		return fieldResume
	case "name":
		return fieldName
	case "owner":
		return fieldOwner
	case "reentrant":
		return fieldReentrant
	case "fair":
		return fieldFair
	case "wait_ms":
		return fieldWaitMS
	case "lease_ms":
		return fieldLeaseMS
	case "max_hold_ms":
		return fieldMaxHoldMS
	case "crash_delay_ms":
		return fieldCrashDelayMS
	case "keep_ms":
		return fieldKeepMS
	case "shared":
		return fieldShared
	case "permits":
		return fieldPermits
	case "of":
		return fieldCapacity
	case "hold":
		return fieldHold
	case "cut_short":
		return fieldCutShort
	case "target":
		return fieldTarget
	case "after":
		return fieldAfter
	case "holds":
		return fieldHolds
	case "more":
		return fieldMore
	case "wait":
		return fieldWait
	case "code":
		return fieldCode
	case "msg":
		return fieldMsg
	case "sidecar":
		return fieldSidecar
	case "version":
		return fieldVersion
	case "session":
		return fieldSession
	case "now_ns":
		return fieldNowNS
	case "ticket":
		return fieldTicket
	case "resumed":
		return fieldResumed
	case "token":
		return fieldToken
	case "count":
		return fieldCount
	case "deadline_ns":
		return fieldDeadlineNS
	case "end_ns":
		return fieldEndNS
	case "canceled":
		return fieldCanceled
	case "lock":
		return fieldLock
	case "locks":
		return fieldLocks
	case "next":
		return fieldNext
	case "redis":
		return fieldRedis
	case "redis_address":
		return fieldRedisAddress
	case "degraded":
		return fieldDegraded
	case "redis_run_id":
		return fieldRedisRunID
	case "redis_risk":
		return fieldRedisRisk
	case "build":
		return fieldBuild
	case "key_prefix":
		return fieldKeyPrefix
	case "reason":
		return fieldReason
	case "text":
		return fieldText
	case "state":
		return fieldState
	case "pid":
		return fieldPID
	case "uid":
		return fieldUID
	case "cmd":
		return fieldCmd
	case "held_ms":
		return fieldHeldMS
	case "absent":
		return fieldAbsent
	case "absent_ms":
		return fieldAbsentMS
	case "absent_left_ms":
		return fieldAbsentLeftMS
	case "orphan":
		return fieldOrphan
	case "keep_left_ms":
		return fieldKeepLeftMS
	case "remote_field":
		return fieldRemoteField
	case "remote_ttl_ms":
		return fieldRemoteTTLMS
	case "remote_host":
		return fieldRemoteHost
	case "host":
		return fieldHost
	case "hosts":
		return fieldHosts
	case "after_host":
		return fieldAfterHost
	case "started_ms":
		return fieldStartedMS
	case "waiting":
		return fieldWaiting
	case "waiters":
		return fieldWaiters
	case "waited_ms":
		return fieldWaitedMS
	case "events":
		return fieldEvents
	case "missed":
		return fieldMissed
	case "hidden":
		return fieldHidden
	case "at_ns":
		return fieldAtNS
	case "kind":
		return fieldKind
	case "started_ns":
		return fieldStartedNS
	case "roundtrip_ns":
		return fieldRoundTripNS
	case "trouble":
		return fieldTrouble
	case "sessions":
		return fieldSessions
	case "held":
		return fieldHeld
	case "oldest_waiter":
		return fieldOldestWaiter
	case "oldest_hold":
		return fieldOldestHold
	case "age_ms":
		return fieldAgeMS
	case "renewals_late":
		return fieldRenewalsLate
	case "lost":
		return fieldLost
	case "restart":
		return fieldRestart
	case "ended":
		return fieldEnded
	case "back":
		return fieldBack
	case "away":
		return fieldAway
	case "grants":
		return fieldGrants
	case "key":
		return fieldKey
	case "ttl_ms":
		return fieldTTLMS
	case "owners":
		return fieldOwners
	case "queue":
		return fieldQueue
	case "queued":
		return fieldQueued
	case "holder":
		return fieldHolder
	case "holders":
		return fieldHolders
	case "field":
		return fieldField
	case "entries":
		return fieldEntries
	case "passed":
		return fieldPassed
	case "slot":
		return fieldSlot
	case "shard":
		return fieldShard
	case "shards":
		return fieldShards
	case "shard_count":
		return fieldShardCount
	case "address":
		return fieldAddress
	case "slots":
		return fieldSlots
	case "unsent":
		return fieldUnsent
	}
	return 0
}

// nesting returns how deep arrays and maps may nest in the value of a field: MaxDepth, and the
// depth of the field's own structure.
func nesting(f field) int {
	switch f {
	case fieldErr, fieldOldestWaiter, fieldOldestHold, fieldRestart:
		return MaxDepth + 1 // the map
	case fieldWaiters, fieldHolders:
		return MaxDepth + 2 // array, waiter
	case fieldEvents, fieldLost, fieldQueue, fieldShards:
		return MaxDepth + 2 // array, event
	case fieldLock, fieldHolder:
		return MaxDepth + 3 // row, waiters
	case fieldLocks, fieldOwners:
		return MaxDepth + 4 // array, row, waiters
	}
	return MaxDepth
}

const maxNesting = MaxDepth + 4

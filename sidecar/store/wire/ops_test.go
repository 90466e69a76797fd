package wire

import "github.com/locksidecar/locksidecar/sidecar/redisop"

const ourUUID = "11111111-2222-8333-8444-555555555555"

func takeOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Take, Name: name, HoldID: num, Count: 1, LeaseMS: 30_000, Asked: redisop.Asked{Reserve: 1}}
}

func renewOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Renew, Name: name, HoldID: num, Count: 1, LeaseMS: 30_000}
}

func checkOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Check, Name: name, HoldID: num, Count: 1}
}

func dropOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Drop, Name: name, HoldID: num}
}

// permitsOp keeps permits of a semaphore of ten, and asks for more.
func permitsOp(name string, num uint64, keep uint32, want uint16) redisop.Op {
	op := takeOp(name, num)
	op.Of, op.Count, op.Want, op.Times, op.Capacity = redisop.KindPermits, keep, want, 1, 10
	return op
}

// rwOp keeps a read/write lock in a mode, asks for another one, and waits in queues.
func rwOp(name string, num uint64, keep, want redisop.Mode, queues uint8) redisop.Op {
	op := takeOp(name, num)
	op.Of, op.Count, op.Want, op.Times = redisop.KindReadWrite, uint32(keep), uint16(want), queues
	return op
}

// wirePass is a Drop that may pass the lock on.
func passOp(name string, num uint64, passedMS uint32) redisop.Op {
	op := dropOp(name, num)
	op.LeaseMS, op.PassedMS = 20_000, passedMS
	return op
}

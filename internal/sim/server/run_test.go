package server

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What a Drop leaves to the Take after it holds in their run only: not for a Take that a later process of the host
// sends alone, because the store did not send its Drop.
func TestDropMattersToTheTakeOfItsOwnRunOnly(t *testing.T) {
	drop := redisop.Op{Kind: redisop.Drop, Name: "a", HoldID: 1}
	take := redisop.Op{Kind: redisop.Take, Name: "a", HoldID: 2, Asked: redisop.Asked{Arrived: 1, Flags: redisop.AfterPendingDrop | redisop.Enqueue | redisop.InOrder}}
	pair := Run{Ops: []redisop.Op{drop, take}}
	if c := pair.Command(0, 0, 0, 0); c.Next == nil || c.Next.HoldID != 2 {
		t.Error("the Drop does not know the Take of its run")
	}
	pair.onReply(0, &redis.Reply{Passed: true, Paused: true})
	if c := pair.Command(1, 0, 0, 0); !c.PassedOn || !c.LeftFree {
		t.Errorf("the Take does not know what the Drop of its run did: %+v", c)
	}
	alone := Run{Ops: []redisop.Op{take}, again: 1}
	if c := alone.Command(0, 0, 0, 0); c.PassedOn || c.LeftFree || c.Next != nil {
		t.Errorf("a Take alone: %+v", c)
	}
}

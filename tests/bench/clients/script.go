package main

import (
	"fmt"
	"strconv"
)

// leaseMS is longer than any measurement.
const leaseMS = 30000

// owner is the prefix of the owner fields.
const owner = "clients-benchmark:"

// sortOps puts takes before drops, as the script has them.
func sortOps(ops []*pending) (takes int) {
	for i, p := range ops {
		if !p.op.drop {
			ops[takes], ops[i] = ops[i], ops[takes]
			takes++
		}
	}
	return takes
}

// command appends the keys and arguments of the script for operations that are sorted.
func command(keys, args []string, ops []*pending, takes int) ([]string, []string) {
	for _, p := range ops {
		keys = append(keys, p.op.name)
	}
	for _, p := range ops[:takes] {
		keys = append(keys, "redisson_lock_token:{"+p.op.name+"}")
	}
	counts := string([]byte{byte(takes), 0, byte(len(ops) - takes), 0})
	args = append(args, owner, counts, strconv.Itoa(leaseMS), strconv.Itoa(leaseMS), "1", "1", "0", "", "-")
	for _, p := range ops {
		args = append(args, strconv.FormatUint(p.op.num, 10))
		if p.op.drop {
			args = append(args, "redisson_lock__channel:{"+p.op.name+"}")
		}
	}
	return keys, args
}

// check returns an error if an operation did not have the result that it has on a lock of
// its own: a take draws a token, and a drop is published. The first take of a lock makes its
// counter: see take.lua.
func check(o op, status any) error {
	switch v := status.(type) {
	case int64:
		if o.drop == (v == 0) {
			return nil
		}
	case []any:
		if !o.drop && len(v) == 7 && v[2] == int64(1) {
			return nil
		}
	}
	return fmt.Errorf("the script returned %v", status)
}

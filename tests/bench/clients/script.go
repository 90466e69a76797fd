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
	terms := []byte{byte(takes), 0, byte(len(ops) - takes), 0, 0, 0, 1, 0, 0, 0, 0, 0, 0} // floor 1: see main.lua
	args = append(args, owner+strconv.FormatUint(ops[0].op.num, 10), string(fmt.Appendf(terms, "0 1 %d - ", leaseMS)))
	if takes > 0 {
		args = append(args, strconv.Itoa(leaseMS))
	}
	for _, p := range ops[1:] {
		args = append(args, strconv.FormatUint(p.op.num, 10))
	}
	return keys, args
}

// answer takes in what the script returned for operations.
func answer(ops []*pending, reply any, err error) {
	statuses := []any{reply}
	if len(ops) > 1 {
		statuses, _ = reply.([]any)
	}
	if err == nil && len(statuses) != len(ops) {
		err = fmt.Errorf("%d statuses for %d operations", len(statuses), len(ops))
	}
	for i, p := range ops {
		if p.err = err; err == nil {
			p.err = check(p.op, statuses[i])
		}
	}
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

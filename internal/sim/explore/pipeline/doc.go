// Package pipeline explores one connection to Redis: it takes a Machine of the store through all orders of a small world, and
// checks in each state what the lock table relies on (see package contract).
//
// The world has a few operations and a server that knows scripts, waits for replicas, has subscribers, and serves the slot
// or not. What happens, and when, are actions: operations come, the socket takes bytes, the server executes a command,
// a reply is read, the connection ends in the middle of a command. A state is made again from its actions.
package pipeline

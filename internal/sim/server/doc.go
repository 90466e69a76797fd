// Package server is a model of a Redis server with connections: what it answers to the commands of a store's
// [pipeline.Machine], and what it pushes.
//
// It reads the bytes of the Machine. Operations are executed by internal/sim/redis, the model of the scripts; here is
// what surrounds them: which scripts the server knows, what a user may do, slots, subscriptions, and WAIT. Data, time,
// replicas and the network are its user's: see [World].
//
//	bytes ──► Reader ──► Command ──► Server.Do ──► World.Execute, one operation each
//	                                     │
//	                                     └──► World.Send: replies and pushes
//
// The test of this package gives the bytes of one Machine to a real redis-server and to the model: each reply must be
// equal. Nothing that ships imports this package.
package server

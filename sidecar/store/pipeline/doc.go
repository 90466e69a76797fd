// Package pipeline is the state machine of one connection to Redis, and of what waits for it: a Machine.
//
// A Machine has no socket, no clock and no goroutine. Its owner gives it operations, replies and the time, writes
// its bytes, and hands on its deliveries. So the daemon drives it from sockets, and the simulation from values.
//
//	Do, Subscribe, Ask ──► what waits ──► Up: calls in flight ──► Bytes
//	                                            │
//	             Reply: one for each call ──────┴──► Deliver
//
// Commands are written as they come, and replies are taken in as they come: full duplex. Deliveries have the order
// in which Redis made what they bring.
package pipeline

package protocol

import "os"

// Socket is the path of the socket if neither a setting nor $LOCKSIDECAR_SOCKET names another one.
const Socket = "/run/locksidecar/locksidecar.sock"

// DefaultSocket returns the path of the socket if no setting names another one:
// $LOCKSIDECAR_SOCKET, or else Socket.
func DefaultSocket() string {
	if path := os.Getenv("LOCKSIDECAR_SOCKET"); path != "" {
		return path
	}
	return Socket
}

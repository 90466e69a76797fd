package protocol

import "os"

// DefaultSocket returns the path of the socket if no setting names another one:
// $LOCKSIDECAR_SOCKET, or else /run/locksidecar/locksidecar.sock.
func DefaultSocket() string {
	if path := os.Getenv("LOCKSIDECAR_SOCKET"); path != "" {
		return path
	}
	return "/run/locksidecar/locksidecar.sock"
}

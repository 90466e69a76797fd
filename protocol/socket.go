package protocol

import "os"

// DefaultSocket is where a sidecar listens and a client connects when nobody
// said otherwise: $LOCKSIDECAR_SOCKET, or else /run/locksidecar/locksidecar.sock.
func DefaultSocket() string {
	if path := os.Getenv("LOCKSIDECAR_SOCKET"); path != "" {
		return path
	}
	return "/run/locksidecar/locksidecar.sock"
}

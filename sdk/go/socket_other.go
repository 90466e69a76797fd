//go:build !linux

package locksidecar

// Dial returns an error here, so no program has a Client, and socketPermissions is not called.
// It lets the rest of the package compile.
func socketPermissions(string) string { return "" }

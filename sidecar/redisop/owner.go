package redisop

// IsSidecar reports whether a uuid is one that only sidecars make: of version 8. Sidecars of
// versions that ended have others.
func IsSidecar(id string) bool { return len(id) == 36 && id[14] == '8' }

// IsOfSidecar reports whether an owner field begins with such a uuid.
func IsOfSidecar(field string) bool {
	return len(field) > 36 && field[36] == ':' && IsSidecar(field[:36])
}

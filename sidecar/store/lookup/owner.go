package lookup

import (
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// UUIDOf returns the uuid that an owner field begins with; "": it begins with none. The field is
// that of a sidecar, or of a Redisson program.
func UUIDOf(field string) string {
	id, _, ok := strings.Cut(field, ":")
	if !ok || !wire.IsUUID(id) {
		return ""
	}
	return id
}

// ParseOwner returns the uuid and the hold number of an owner field, if it is one that a sidecar
// writes.
func ParseOwner(field string) (id string, hold uint64, ok bool) {
	id = UUIDOf(field)
	hold, err := strconv.ParseUint(strings.TrimPrefix(field, id+":"), 10, 64)
	isOurs := redisop.IsSidecar(id) && err == nil && hold > 0 && hold <= wire.MaxScriptNumber
	return id, hold, isOurs && field == id+":"+strconv.FormatUint(hold, 10)
}

package lookup

import (
	"strings"
	"testing"
)

const (
	deadUUID  = "dddddddd-2222-8333-8444-555555555555"
	otherUUID = "99999999-8888-7777-6666-555555555555" // of an older sidecar
)

func TestOwnerFieldsOfSidecarsAreParsed(t *testing.T) {
	id, hold, ok := ParseOwner(deadUUID + ":9007199254740991")
	if id != deadUUID || hold != 1<<53-1 || !ok {
		t.Error(id, hold, ok)
	}
	for _, field := range []string{
		"", ":", deadUUID, deadUUID + ":", deadUUID + ":0", deadUUID + ":-1", deadUUID + ":+1", deadUUID + ":07", deadUUID + ": 7", deadUUID + ":7:write",
		deadUUID + ":9007199254740992", otherUUID + ":7", "x" + deadUUID + ":7", "redisson:7", strings.Repeat("8", 36) + ":7",
	} {
		if _, _, ok := ParseOwner(field); ok {
			t.Errorf("%q is taken for a field of a sidecar", field)
		}
	}
}

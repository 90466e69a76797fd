package wire

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Script carries out many operations: its text and the digest by which Redis knows it.
type Script struct {
	Text    string
	SHA     string
	evalsha []byte // the first two arguments of its EVALSHA, encoded
}

var (
	AcquireRelease = NewScript(AcquireReleaseText())
	Renew          = NewScript(scriptText(OwnershipText, renewText))
	Arrive         = NewScript(scriptText(arriveText))
	Permissions    = NewScript(scriptText(permissionsText))
	Permits        = NewScript(PermitsText())
	ReadWrite      = NewScript(ReadWriteText())

	Scripts = []*Script{AcquireRelease, Renew, Arrive, Permissions, Permits, ReadWrite}
)

func NewScript(text string) *Script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &Script{Text: text, SHA: sha, evalsha: AppendString(AppendString(nil, "evalsha"), sha)}
}

// Run is one run of a script: EVALSHA, or EVAL, which also teaches Redis the script.
type Run struct {
	Script *Script
	ByText bool
}

// ScriptOf is the script that executes an operation.
func ScriptOf(op *redisop.Op) *Script {
	switch op.Of {
	case redisop.KindPermits:
		return Permits
	case redisop.KindReadWrite:
		return ReadWrite
	}
	return scriptOf(op.Kind)
}

// scriptOf is the script that executes operations on locks of kind lock.
func scriptOf(k redisop.OpKind) *Script {
	switch k {
	case redisop.Take, redisop.Drop:
		return AcquireRelease
	case redisop.Renew, redisop.Check:
		return Renew
	case redisop.Arrive:
		return Arrive
	}
	panic(fmt.Sprintf("wire: operation of unknown kind %d", k))
}

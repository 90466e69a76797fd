package conform

// Scene is a scripted conversation with one client, and what it demands of the client.
type Scene struct {
	Name   string
	Demand string    // what the client must do, in one sentence
	Spec   string    // where protocol/SPEC.md demands it
	Needs  []Feature // that the driver must name

	play func(*stage)
}

// Feature is something that a client may do or leave undone.
type Feature string

const (
	Resume     Feature = "resume"     // resumes its session (SPEC.md §4.11)
	Owners     Feature = "owners"     // has owners that re-enter
	Concurrent Feature = "concurrent" // executes other commands while an acquire waits
	Cancel     Feature = "cancel"     // can cancel an acquire that waits
	Limit      Feature = "limit"      // ends a wait by its own clock if the sidecar does not answer
	Confirm    Feature = "confirm"    // can wait until a release is confirmed
	Lease      Feature = "lease"      // lease_ms
	MaxHold    Feature = "max_hold"   // max_hold_ms
	CrashDelay Feature = "crash_delay"
	Keep       Feature = "keep"
	ReadWrite  Feature = "read_write" // read/write locks
	Permits    Feature = "permits"    // of semaphores
	Notify     Feature = "notify"     // reports a loss without being asked
)

// Features are all features, with what each means.
var Features = []struct {
	Feature Feature
	Means   string
}{
	{Resume, "the client resumes its session after its connection has ended"},
	{Owners, "an owner can re-enter its hold: `owner` of `acquire`"},
	{Concurrent, "the driver executes other commands while an `acquire` or a `close` waits"},
	{Cancel, "an `acquire` that waits can be canceled: the command `cancel`"},
	{Limit, "a wait with `wait_ms` ends by the client's own clock if the sidecar does not answer"},
	{Confirm, "the client can wait until a release is confirmed: `confirm` of `release`"},
	{Lease, "`lease_ms` of `acquire`"},
	{MaxHold, "`max_hold_ms` of `acquire`"},
	{CrashDelay, "`crash_delay_ms` of `acquire`"},
	{Keep, "`keep_ms` of `acquire`"},
	{ReadWrite, "`mode` of `acquire`, and the command `downgrade`: the client has read/write locks"},
	{Permits, "`of` and `permits` of `acquire`: the client acquires permits of a semaphore"},
	{Notify, "the driver reports a loss without being asked"},
}

// Scenes returns all scenes, in the order in which they are played.
func Scenes() []Scene {
	var all []Scene
	for _, part := range [][]Scene{
		helloScenes, lockScenes, deadlineScenes, cancelScenes, badFrameScenes(), resumeScenes, confirmScenes, permitScenes, readWriteScenes,
	} {
		all = append(all, part...)
	}
	return all
}

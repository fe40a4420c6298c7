//go:build faults || e2e

package contract

// Files in the plugin's data mount by which a test gives orders to a build of the
// plugin with the tag "faults", and reads what became of them.
const (
	FaultFile = "/data/fault-order"
	FaultHit  = "/data/fault-hit"
)

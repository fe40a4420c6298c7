package engine

// Stages of a Progress beside those that the agent reports
// (contract.StageProbe and the rest).
const (
	StagePull = "pull"
	StageSeal = "seal"
)

// Progress is one report on long work.
type Progress struct {
	// Stage is what is being done now.
	Stage string `json:"stage"`
	// Done and Total are bytes; Total is 0 where it is unknown.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Message is one line for a person.
	Message string `json:"message,omitempty"`
	// CPUSeconds is the processor time, in seconds, of the helper container whose last
	// report this is; 0 in others.
	CPUSeconds float64 `json:"cpuSeconds,omitempty"`
}

// ProgressFunc is told about long work. It is called from one goroutine at a
// time and must not block.
type ProgressFunc func(Progress)

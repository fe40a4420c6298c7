package contract

// Dump is what a Manifest says of a seed that was restored from a dump.
type Dump struct {
	// Format is "plain", "custom", "tar" or "directory"; Compression is "gzip" or "zstd",
	// "" for a file that is not compressed as a whole.
	Format      string `json:"format"`
	Compression string `json:"compression,omitempty"`
	// ServerVersion is of the server that was dumped, and ToolVersion of pg_dump, where
	// the dump tells them.
	ServerVersion string `json:"serverVersion,omitempty"`
	ToolVersion   string `json:"toolVersion,omitempty"`
	// Roles are those that the dump names and does not make: they were made without a
	// password and without LOGIN.
	Roles []string `json:"roles,omitempty"`
	// Notes are lines for the seed's owner.
	Notes []string `json:"notes,omitempty"`
	// Failed are the statements of the dump that the server refused, at most MostFailed
	// of them; FailedMore is how many there were beyond.
	Failed     []FailedStatement `json:"failed,omitempty"`
	FailedMore int               `json:"failedMore,omitempty"`
	// FailedData is how many of all those may have cost data, or what keeps data right.
	// A seed has some only where its owner insisted.
	FailedData int `json:"failedData,omitempty"`
}

// MostFailed bounds Dump.Failed: a manifest is read with every look at a seed.
const MostFailed = 1000

// FailedStatement is one statement of a dump that the server refused.
type FailedStatement struct {
	// Line is where the statement begins, counted in the SQL that the dump is or that
	// pg_restore makes of it.
	Line     int64  `json:"line"`
	Database string `json:"database"`
	// Statement is its beginning, without what is secret.
	Statement string `json:"statement"`
	// Message is the server's, Code its SQLSTATE.
	Message string `json:"message"`
	Code    string `json:"code,omitempty"`
	// Data says that it may have cost data.
	Data bool `json:"data,omitempty"`
}

// DumpRequest is the request of AgentDump.
type DumpRequest struct {
	Source Source `json:"source"`
	Stage  string `json:"stage"`
	// Major is the source's.
	Major int `json:"major"`
}

// DumpResult is the answer to AgentDump.
type DumpResult struct {
	Bytes int64 `json:"bytes"`
	// Notes are for Dump.Notes.
	Notes []string `json:"notes,omitempty"`
}

// Files of a staging volume that a dump is kept in until it is restored.
const (
	StagedDump      = "dump"
	StagedDumpFile  = StagedDump + "/dump.custom"
	StagedRolesFile = StagedDump + "/roles.sql"
)

// RestoreRequest is the request of AgentRestore. Unless Staged, the dump follows it on
// standard input, as package dumpfile's frames; one of the directory format as a tar.
type RestoreRequest struct {
	Stage   string `json:"stage"`
	DataDir string `json:"dataDir"`
	// Dump carries what the caller knows of it.
	Dump Dump `json:"dump"`
	// Bytes is the size of what follows, 0 where it is not known.
	Bytes int64 `json:"bytes,omitempty"`
	// Staged says that AgentDump has left the dump in the staging volume.
	Staged bool `json:"staged,omitempty"`
	// Database is where statements go that come before any \connect; it is made where it
	// is not there. Empty is the dump's own, or postgres.
	Database string `json:"database,omitempty"`
	// Locale is that of the cluster, and of databases that the dump makes: empty is the
	// image's for the one, and the dump's for the others.
	Locale string `json:"locale,omitempty"`
	// Password is to be the superuser's; empty keeps the one that the dump gives, or
	// makes a random one.
	Password string `json:"password,omitempty"`
	// Force takes a restore in which statements failed that may have cost data.
	Force bool `json:"force,omitempty"`
}

// RestoreResult is the answer to AgentRestore.
type RestoreResult struct {
	Dump     Dump   `json:"dump"`
	Database string `json:"database"`
	// Password is the superuser's where one was made; it is told here and kept nowhere.
	Password string `json:"password,omitempty"`
}

// DumpSuperuser is the role that owns a cluster made for a dump.
const DumpSuperuser = "postgres"

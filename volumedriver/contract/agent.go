package contract

import "time"

// The agent is the pgoverlay binary inside a helper or branch container. It gets
// one request as JSON on its standard input, so that a password is never in an
// argument, an environment or `docker inspect`, and answers with AgentEvent
// objects, one a line, on its standard output. When its standard input ends
// before its work does, its caller is gone: it undoes what it began and exits.

// Verbs of `pgoverlay agent VERB`.
const (
	// AgentProbe asks a source server what a seed of it would be. ProbeRequest.
	AgentProbe = "probe"
	// AgentBaseBackup copies a source into a staging volume. BaseBackupRequest.
	AgentBaseBackup = "basebackup"
	// AgentDump dumps a source into a staging volume. DumpRequest.
	AgentDump = "dump"
	// AgentRestore makes a cluster in a staging volume and restores a dump into it.
	// RestoreRequest.
	AgentRestore = "restore"
	// AgentSettle settles a staging volume. SettleRequest.
	AgentSettle = "settle"
	// AgentLogin gives a branch's role a password of the branch's own, or tells it. It
	// runs in the branch's container. LoginRequest.
	AgentLogin = "login"
	// AgentPreflight tells what an image is. PreflightRequest.
	AgentPreflight = "preflight"
	// AgentReady waits until the server of this container answers a query. It takes
	// flags, --user, --database and --timeout, and no request.
	AgentReady = "ready"
	// AgentDial joins its standard input and output to the server's unix socket.
	AgentDial = "dial"
)

// OldestMajor and NewestMajor bound the versions whose files the settle and the shim know.
const (
	OldestMajor = 14
	NewestMajor = 18
)

// Source is a Postgres server that a seed is made of.
type Source struct {
	// URL is a libpq connection URL without a password.
	URL string `json:"url"`
	// Password is empty where the source trusts the user.
	Password string `json:"password,omitempty"`
	// RootCert, Cert and Key are PEM: the authorities that the source's certificate is
	// checked against, and the client's own certificate with its key.
	RootCert string `json:"rootCert,omitempty"`
	Cert     string `json:"cert,omitempty"`
	Key      string `json:"key,omitempty"`
}

// ProbeRequest is the request of AgentProbe.
type ProbeRequest struct {
	Source Source `json:"source"`
	// Logical says that the source is to be dumped, which takes no replication.
	Logical bool `json:"logical,omitempty"`
}

// Probe is the answer to AgentProbe: everything that decides whether and how the
// source can be copied. The probe also opens, and closes, a replication connection.
type Probe struct {
	Major            int          `json:"major"`
	ServerVersion    string       `json:"serverVersion"`
	SystemIdentifier string       `json:"systemIdentifier"`
	Host             string       `json:"host"`
	Port             int          `json:"port"`
	User             string       `json:"user"`
	Database         string       `json:"database"`
	Superuser        string       `json:"superuser"`
	InRecovery       bool         `json:"inRecovery"`
	Time             time.Time    `json:"time"`
	Tablespaces      []Tablespace `json:"tablespaces,omitempty"`
	// Bytes is the sum of the databases' sizes, 0 where the user may not ask.
	Bytes int64 `json:"bytes"`
	// Settings are the source's values of settings that the manifest records, as far
	// as the user may read them: the preload libraries, archive_mode, ….
	Settings map[string]string `json:"settings,omitempty"`
	// Given are the settings that a configuration file or the command line has set
	// on the source, as far as the user may see them.
	Given []GivenSetting `json:"given,omitempty"`
	// Databases are the source's, without their sizes. Libc is the C library of its
	// server, with the version where the server knows it.
	Databases []Database `json:"databases,omitempty"`
	Libc      string     `json:"libc,omitempty"`
	// Extensions are those of the databases that the user could be asked about, and
	// PreloadLibraries what its server loads, as far as the user may know.
	Extensions       []Extension `json:"extensions,omitempty"`
	PreloadLibraries []string    `json:"preloadLibraries,omitempty"`
}

// GivenSetting is one setting that somebody has decided about.
type GivenSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source is pg_settings.source, "command line"; File is the configuration file, ""
	// where there is none or the user may not know.
	Source string `json:"source"`
	File   string `json:"file,omitempty"`
}

// Tablespace is one tablespace outside the data directory.
type Tablespace struct {
	OID      uint32 `json:"oid"`
	Name     string `json:"name"`
	Location string `json:"location"`
}

// BaseBackupRequest is the request of AgentBaseBackup.
type BaseBackupRequest struct {
	Source Source `json:"source"`
	// Stage is where the staging volume is mounted.
	Stage string `json:"stage"`
	// DataDir is PGDATA below the seed's root, as in Manifest.DataDir.
	DataDir     string       `json:"dataDir"`
	Major       int          `json:"major"`
	Tablespaces []Tablespace `json:"tablespaces,omitempty"`
	// MaxRate bounds what the source sends, in bytes a second; 0 is no bound.
	MaxRate int64 `json:"maxRate,omitempty"`
	// These are those of the Probe: an image in which they would not work is refused
	// before anything is copied. Force accepts what a user may insist on.
	Databases        []Database  `json:"databases,omitempty"`
	Libc             string      `json:"libc,omitempty"`
	Extensions       []Extension `json:"extensions,omitempty"`
	PreloadLibraries []string    `json:"preloadLibraries,omitempty"`
	Force            bool        `json:"force,omitempty"`
}

// PreflightRequest is the request of AgentPreflight. It has nothing to say.
type PreflightRequest struct{}

// SettleRequest is the request of AgentSettle.
type SettleRequest struct {
	Stage   string `json:"stage"`
	DataDir string `json:"dataDir"`
	// Manifest carries what the caller knows: Image, ImageID, MountPath, User,
	// Database, Superuser, Source, SourceTime. The agent fills in the rest.
	Manifest Manifest `json:"manifest"`
	// Settings and Given are those of the Probe, for Manifest.PreloadLibraries and
	// Manifest.Neutralised.
	Settings map[string]string `json:"settings,omitempty"`
	Given    []GivenSetting    `json:"given,omitempty"`
	// Skipped is that of the BaseBackupResult, for Manifest.Neutralised.
	Skipped []string `json:"skipped,omitempty"`
}

// LoginRequest is the request of AgentLogin. Without Rotate and Password, the password
// that the branch has is told, and one is made where it has none.
type LoginRequest struct {
	// Root is where the branch's volume is mounted.
	Root string `json:"root"`
	// User is the role whose password it is; Superuser and Database are for the
	// connection that sets it.
	User      string `json:"user"`
	Superuser string `json:"superuser"`
	Database  string `json:"database"`
	// Password is to be set; empty makes a random one.
	Password string `json:"password,omitempty"`
	// Rotate replaces a password that the branch has.
	Rotate bool `json:"rotate,omitempty"`
}

// Login is the answer to AgentLogin, and the content of PasswordFile.
type Login struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// PasswordFile, at the root of a branch's volume, holds the password that only this
// branch has. Its owner alone may read it.
const PasswordFile = "pgoverlay.password"

// Stages of an AgentEvent, in order.
const (
	StageProbe      = "probe"
	StageBaseBackup = "base backup"
	StageDump       = "dump"
	StageRestore    = "restore"
	StagePrepare    = "prepare"
	StageRecover    = "recover"
	StageNeutralise = "neutralise"
	StageFreeze     = "freeze"
	StageCheckpoint = "checkpoint"
	StageSync       = "sync"
	// StageReady is the one event of AgentReady that is no error.
	StageReady = "ready"
)

// RequestWithin is how long an agent waits for its request, or for white space before it,
// by which a caller that has no request yet says that it lives.
const RequestWithin = 30 * time.Second

// AgentEvent is one line of the agent's output. At most one of Error, Probe,
// BaseBackup, Dump, Restore, Manifest, Login and Image is set, and only in the last line.
type AgentEvent struct {
	Stage string `json:"stage,omitempty"`
	// Done and Total measure the stage, in bytes; Total is 0 where it is unknown.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
	// Message is one line for a person.
	Message string `json:"message,omitempty"`
	// CPUSeconds is the processor time, in seconds, that the agent and its children have
	// used. Only the last event has it.
	CPUSeconds float64 `json:"cpuSeconds,omitempty"`

	Error      *AgentError       `json:"error,omitempty"`
	Probe      *Probe            `json:"probe,omitempty"`
	BaseBackup *BaseBackupResult `json:"baseBackup,omitempty"`
	Dump       *DumpResult       `json:"dump,omitempty"`
	Restore    *RestoreResult    `json:"restore,omitempty"`
	Manifest   *Manifest         `json:"manifest,omitempty"`
	Login      *Login            `json:"login,omitempty"`
	Image      *ImageFacts       `json:"image,omitempty"`
}

// BaseBackupResult is the answer to AgentBaseBackup.
type BaseBackupResult struct {
	// StartLSN is where the backup started.
	StartLSN string `json:"startLsn"`
	Bytes    int64  `json:"bytes"`
	// Skipped are entries of the source's data directory that are links or sockets:
	// a server leaves them out of a base backup.
	Skipped []string `json:"skipped,omitempty"`
	// Unfit is in what the image does not suit the source, for Manifest.Unfit.
	Unfit []Unfit `json:"unfit,omitempty"`
}

// AgentError is a failure that a person can act on.
type AgentError struct {
	Message string `json:"message"`
	// Hint says what to do next.
	Hint string `json:"hint,omitempty"`
	// Code is one of the AgentErr* constants where a caller may want to branch on it.
	Code string `json:"code,omitempty"`
	// Log holds the last lines of the server or tool that failed.
	Log []string `json:"log,omitempty"`
}

// Error makes an AgentError an error.
func (e *AgentError) Error() string { return e.Message }

// Codes of an AgentError.
const (
	AgentErrUnreachable   = "unreachable"
	AgentErrPassword      = "password"
	AgentErrNoReplication = "no-replication"
	AgentErrPrivilege     = "privilege"
	AgentErrMajor         = "major"
	AgentErrImage         = "image"
	AgentErrNoServer      = "no-server"
	AgentErrInterrupted   = "interrupted"
	// AgentErrDump is a dump that cannot be restored, or not whole.
	AgentErrDump   = "dump"
	AgentErrFailed = "failed"
)

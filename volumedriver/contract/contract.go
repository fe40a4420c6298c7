// Package contract is what the Docker CLI plugin and the volume plugin must
// agree on, and nothing else: the driver's name, the options of
// `docker volume create`, the shape of a volume's Status, and the manifest of a
// sealed seed. It holds types and constants, so that neither side imports the
// other.
package contract

import (
	"path"
	"regexp"
	"strings"
	"sync"
	"time"
)

// DriverName is the plugin's name, and the `driver:` of a Compose volume.
// Docker itself reports it as "pgoverlay:latest"; always write it without the
// tag, because Compose hashes the string.
const DriverName = "pgoverlay"

// DriverNameInEngine is the name under which the Engine lists the driver and
// which the volume filter `driver=` demands.
const DriverNameInEngine = DriverName + ":latest"

// Options of `docker volume create -d pgoverlay -o KEY=VALUE`.
const (
	// OptSeed makes a branch of a seed: NAME (newest generation) or NAME@GEN.
	OptSeed = "seed"
	// OptBranch makes a branch of a branch.
	OptBranch = "branch"
	// OptCow is the cow mode asked for: one of the Cow* requests.
	OptCow = "cow"
	// OptTTL is a Go duration ("24h") after which the branch may be reaped.
	OptTTL = "ttl"
	// OptStaging makes a staging volume for the seed of that name.
	OptStaging = "staging"
	// OptGeneration, beside OptStaging, says what must hold for the seed's name:
	// GenerationFirst or GenerationNext.
	OptGeneration = "generation"
	// OptOp makes a ticket: one of the Op* operations.
	OptOp = "op"
	// OptVolume names the volume that a ticket is about.
	OptVolume = "volume"
)

// Values of OptGeneration.
const (
	// GenerationFirst refuses a seed name that is in use. It is the default.
	GenerationFirst = "first"
	// GenerationNext adds a generation to a seed that may exist.
	GenerationNext = "next"
)

// Operations of a ticket: a volume that is created with a fresh name only to
// have something done, inspected for the answer in its Status, and removed. The
// plugin never lists it.
const (
	// OpStatus answers with the plugin's own Plugin status.
	OpStatus = "status"
	// OpSeal turns the staging volume OptVolume into a seed generation.
	OpSeal = "seal"
	// OpReset puts the unmounted branch OptVolume back to its seed.
	OpReset = "reset"
	// OpUsage answers with the Files that the branch OptVolume owns.
	OpUsage = "usage"
)

// Values of OptCow.
const (
	// CowAuto picks the best mode that the host and the image can run.
	CowAuto = "auto"
	// CowFile asks for lazyrw: nothing is copied on read, a file on first write.
	CowFile = "file"
	// CowOff asks for no shim: overlayfs copies a file when Postgres opens it.
	CowOff = "off"
)

// Cow modes as a Status reports them.
const (
	ModeLazyRW = "lazyrw"
	ModeEager  = "eager"
)

// Ways by which a branch's server loaded the shim, as a Status reports them.
const (
	ViaPreload = "LD_PRELOAD"
	ViaLibrary = "shared_preload_libraries"
	// ViaNone is of a server that runs without it.
	ViaNone = "none"
)

// Copy-up modes of the data file system, as a Status reports them.
const (
	CopyUpCopy  = "copy"
	CopyUpClone = "clone"
)

// Kinds of volume.
const (
	KindSeed    = "seed"
	KindBranch  = "branch"
	KindStaging = "staging"
	KindTicket  = "ticket"
)

// Paths inside a volume.
const (
	// RuntimeDir is the folder at the root of every branch and staging volume that
	// holds the shim and the agent.
	RuntimeDir = ".pgoverlay"
	// ShimFile is the shim, below RuntimeDir.
	ShimFile = "lazyrw.so"
	// AgentFile is the agent, below RuntimeDir.
	AgentFile = "agent"
	// PreloadConf is a configuration file below RuntimeDir, which the branch profile
	// includes where it exists: it names the shim in shared_preload_libraries.
	PreloadConf = "preload.conf"
	// NoPreloadMark begins the line of the branch profile that says why it does not
	// include PreloadConf.
	NoPreloadMark = "# The image's server cannot load lazyrw: "
	// EagerMark is a file below RuntimeDir whose presence tells the shim to copy
	// nothing lazily, however it was loaded.
	EagerMark = "eager"
	// StagingRoot is the folder of a staging volume that becomes the seed's root.
	StagingRoot = "root"
	// StagingManifest is the file of a staging volume that the agent writes last;
	// seal refuses a staging volume without it.
	StagingManifest = "manifest.json"
)

// FromDataDir gives the path of something below the volume's root as the server sees it from PGDATA, which is
// dataDir below that root as in Manifest.DataDir: its working directory, and where its configuration files are.
func FromDataDir(dataDir, name string) string {
	if dataDir = path.Clean(dataDir); dataDir == "." {
		return name
	}
	return strings.Repeat("../", strings.Count(dataDir, "/")+1) + name
}

// Commands of pgoverlay that a helper container runs on the data mount's source, which
// it has at DataMount; each takes -id STORE.
const (
	// CommandCheck prints the store's id, or refuses as a start would.
	CommandCheck = "check"
	// CommandWipe deletes the data root.
	CommandWipe = "wipe"
)

// DataMount is where the plugin, and a helper container that stands in for it, has the
// folder that the data root lies in.
const DataMount = "/data"

// EnvStoreID pins the plugin to one data root: when it is set and the data root
// carries another id, or none, the plugin exits before it listens. Docker then
// reports the plugin as disabled and keeps every volume's labels and references,
// which an error from Get would make it drop.
const EnvStoreID = "PGOVERLAY_STORE_ID"

// NamePattern is the rule for the names of seeds and branches. Docker does not
// check names for a plugin's volumes, so the plugin does. Two characters at least:
// docker takes `-v x:/path` for a path on a Windows drive (docker/cli
// internal/volumespec, isWindowsDrive), and the container gets an empty volume.
const NamePattern = `^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,127}$`

// nameRE is compiled when first asked for: its counted repetition costs more than
// the rest of the agent's start, which is on the way of every branch's creation.
var nameRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(NamePattern) })

// ValidName reports whether name follows NamePattern.
func ValidName(name string) bool { return nameRE().MatchString(name) }

// Status is the Status map of a volume, and the keys of our verbs' JSON output.
type Status struct {
	// Kind is one of the Kind* constants.
	Kind string `json:"kind"`
	// Seed and Generation name the seed generation: itself for a seed, the parent
	// for a branch, the target for a staging volume (generation 0).
	Seed       string `json:"seed,omitempty"`
	Generation int    `json:"generation,omitempty"`
	// Parent is the branch that a branch was made from, if it was.
	Parent string `json:"parent,omitempty"`
	// CowMode is one of the Mode* constants; of a branch only.
	CowMode string `json:"cowMode,omitempty"`
	// CowReason says why a branch that may be lazy is not, or that nothing has proved it
	// yet.
	CowReason string `json:"cowReason,omitempty"`
	// CowVia is how the branch's last server loaded the shim, one of the Via* constants,
	// as that server noted it; empty before the first.
	CowVia string `json:"cowVia,omitempty"`
	// CopyUpMode is one of the CopyUp* constants.
	CopyUpMode string `json:"copyUpMode,omitempty"`
	// OwnedBytes is what the volume has allocated on disk and shares with nobody:
	// the upper of a branch, the whole tree of a seed. Never apparent size.
	OwnedBytes int64 `json:"ownedBytes"`
	// Mounted says whether any container holds the volume.
	Mounted bool `json:"mounted"`
	// ExpiresAt is when the branch may be reaped, and Expired whether that time has
	// come. The plugin says it, since the clock that counts is the Engine's host's.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	Expired   bool       `json:"expired,omitempty"`
	// Settings are the Postgres settings of a branch's own.
	Settings map[string]string `json:"settings,omitempty"`
	// LastError is the last error that the plugin met with this volume.
	LastError string `json:"lastError,omitempty"`
	// Damaged says that the volume's metadata cannot be read: it can be removed, and
	// nothing else. LastError says what is wrong.
	Damaged bool `json:"damaged,omitempty"`
	// Branches are the names of the branches that stand on this seed generation, or
	// on this branch.
	Branches []string `json:"branches,omitempty"`
	// Manifest is that of the seed generation; a branch has its seed's.
	Manifest *Manifest `json:"manifest,omitempty"`
	// Plugin is the answer to OpStatus.
	Plugin *PluginStatus `json:"plugin,omitempty"`
	// SealedAs is the answer to OpSeal: NAME@GEN.
	SealedAs string `json:"sealedAs,omitempty"`
	// Files is the answer to OpUsage.
	Files []FileUsage `json:"files,omitempty"`
}

// FileUsage is one file, folder or link of a branch that owns bytes.
type FileUsage struct {
	// Path is below the volume's root; "." is that itself.
	Path string `json:"path"`
	// OwnedBytes is as in Status; never 0.
	OwnedBytes int64 `json:"ownedBytes"`
}

// PluginStatus is what the plugin says of itself.
type PluginStatus struct {
	Version string `json:"version"`
	// Runtime identifies the shim and agent that new mounts carry.
	Runtime string `json:"runtime"`
	StoreID string `json:"storeId"`
	// FileSystem is the type of the data root's file system: "ext4", "xfs", …
	FileSystem string `json:"fileSystem"`
	CopyUpMode string `json:"copyUpMode,omitempty"`
	Kernel     string `json:"kernel"`
	// CowMode is what cow=auto comes to on this engine, and CowReason says why where that
	// is less than lazyrw: the plugin tries at its start what lazyrw asks of the kernel.
	CowMode   string `json:"cowMode,omitempty"`
	CowReason string `json:"cowReason,omitempty"`
	// TotalBytes and FreeBytes are of the data root's file system.
	TotalBytes int64 `json:"totalBytes"`
	FreeBytes  int64 `json:"freeBytes"`
	Seeds      int   `json:"seeds"`
	Branches   int   `json:"branches"`
	// Unfit says why the data root cannot hold branches, empty if it can.
	Unfit string `json:"unfit,omitempty"`
	// Volumes are the names of all volumes, by the plugin's own word: the Engine lists
	// none that it knows under the same name from another driver.
	Volumes []string `json:"volumes,omitempty"`
}

package contract

import "time"

// ManifestFormat is the manifest's version. A reader refuses a newer one.
const ManifestFormat = 1

// Manifest is what a seed says of itself. The settle agent writes it as the last
// step of a settle; from the seal on it never changes.
type Manifest struct {
	Format int `json:"format"`
	// Major is the Postgres major version, 17. ServerVersion is "17.5 (Debian …)".
	Major         int    `json:"major"`
	ServerVersion string `json:"serverVersion"`
	// SystemIdentifier is pg_control's, in decimal.
	SystemIdentifier string `json:"systemIdentifier"`

	// Image is the reference of the image that settled the seed and that branches
	// run; ImageID is the Engine's id of it at that time.
	Image   string `json:"image"`
	ImageID string `json:"imageId,omitempty"`

	// MountPath is where the volume belongs in a container of that image, and
	// DataDir is PGDATA below it, slash-separated: "." up to 17, "18/docker" in 18.
	MountPath string `json:"mountPath"`
	DataDir   string `json:"dataDir"`
	// UID and GID own every file of the seed.
	UID int `json:"uid"`
	GID int `json:"gid"`

	// Superuser is the bootstrap superuser's role. User and Database are what a
	// client that names none gets; they are those of the source's URL.
	Superuser string `json:"superuser"`
	User      string `json:"user"`
	Database  string `json:"database"`

	Databases  []Database  `json:"databases"`
	Extensions []Extension `json:"extensions,omitempty"`
	// PreloadLibraries are the source's shared_preload_libraries and the like. They
	// are not loaded in the settle, nor in branches.
	PreloadLibraries []string `json:"preloadLibraries,omitempty"`
	// Libc is the C library that sorted the seed's text indexes: "glibc 2.41".
	Libc string `json:"libc,omitempty"`
	// ICU is the major version of ICU that did, "" for a server without.
	ICU string `json:"icu,omitempty"`
	// ImageDigest is what the registry calls the image, where it came from one.
	ImageDigest string `json:"imageDigest,omitempty"`
	// Unfit is in what the image that settled the seed does not suit it, as far as its
	// owner knew and insisted, or nothing is at risk.
	Unfit []Unfit `json:"unfit,omitempty"`
	// CannotLoad says why the server of the image that settled the seed cannot load lazyrw,
	// as in ImageFacts: the configuration of the seed's branches then names no library.
	CannotLoad string `json:"cannotLoad,omitempty"`
	// Tablespaces are the names of those beside the two that every cluster has.
	Tablespaces []string `json:"tablespaces,omitempty"`
	// UnloggedTables is how many tables are empty after a crash, as of any server.
	UnloggedTables int `json:"unloggedTables,omitempty"`
	// DataChecksums says whether the cluster has page checksums.
	DataChecksums bool `json:"dataChecksums"`

	// Source says where the seed came from, without any credential:
	// "host:port/database", or the name of a dump's file.
	Source string `json:"source"`
	// SourceLSN is where the base backup started; SourceTime is the source's clock
	// then.
	SourceLSN  string    `json:"sourceLsn,omitempty"`
	SourceTime time.Time `json:"sourceTime"`
	SettledAt  time.Time `json:"settledAt"`

	// Dump is set for a seed that was restored from a dump.
	Dump *Dump `json:"dump,omitempty"`

	// Bytes is the sum of the sizes of the seed's files.
	Bytes int64 `json:"bytes"`
	// WALHead is the one WAL segment of the seed, below DataDir ("pg_wal/0000…"), of
	// which only the first pages hold data. The plugin places a sparse copy of it in
	// each new upper, since the kernel's copy-up of a sparse file on ext4 rounds what
	// it writes up to 1 MiB (fs/overlayfs/copy_up.c, ovl_copy_up_file).
	WALHead string `json:"walHead,omitempty"`

	// Neutralised lists what was taken out of the copy because it would act on the
	// world or needs the source's machine. Masked lists the masking scripts run.
	Neutralised []Change `json:"neutralised,omitempty"`
	Masked      []string `json:"masked,omitempty"`
	// Reported lists what was left as it is and may act on the world from a branch:
	// foreign servers, dblink, event triggers, jobs of a scheduler.
	Reported []Finding `json:"reported,omitempty"`
}

// Finding is one thing of a seed that its owner should know of.
type Finding struct {
	// Database is "" for what is of the whole cluster.
	Database string `json:"database"`
	// What is the object: "foreign server prod".
	What string `json:"what"`
	// Detail says where it leads or what it does, without any secret.
	Detail string `json:"detail,omitempty"`
}

// Database is one database of a seed.
type Database struct {
	Name      string `json:"name"`
	Bytes     int64  `json:"bytes"`
	Encoding  string `json:"encoding"`
	Provider  string `json:"provider,omitempty"`
	Collation string `json:"collation"`
	CType     string `json:"ctype"`
	// CollationVersion is what the provider called itself when the seed was settled.
	CollationVersion string `json:"collationVersion,omitempty"`
}

// Extension is one extension that a database of the seed has.
type Extension struct {
	Database string `json:"database"`
	Name     string `json:"name"`
	Version  string `json:"version"`
}

// Change is one setting or object that the settle neutralised.
type Change struct {
	// What is the setting or object: "archive_command", "slot standby1".
	What string `json:"what"`
	// Was is its value in the source, empty where that says nothing or is secret.
	Was string `json:"was,omitempty"`
	// Why is the reason, one line.
	Why string `json:"why"`
}

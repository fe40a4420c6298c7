package engine

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Kinds of Owner. A relation whose name is not known is KindRelation.
const (
	OwnerTable    = "table"
	OwnerIndex    = "index"
	OwnerTOAST    = "toast"
	OwnerSequence = "sequence"
	OwnerMatView  = "materialized view"
	OwnerRelation = "relation"
	OwnerWAL      = "wal"
	OwnerTemp     = "temporary"
	OwnerStatus   = "transaction status"
	OwnerCache    = "catalog cache"
	OwnerServer   = "server"
)

// Owner is something of a branch that owns bytes on disk: a relation with all its
// segments and forks, or all files of one of the server's other kinds.
type Owner struct {
	// Name is SCHEMA.RELATION, or the path below PGDATA where the name is not known.
	Name string `json:"name"`
	// Kind is one of the Owner* constants.
	Kind string `json:"kind"`
	// Table is the table of an index or TOAST table.
	Table    string `json:"table,omitempty"`
	Database string `json:"database,omitempty"`
	// Path is below PGDATA: of a relation its file without fork and segment.
	Path       string `json:"path"`
	Files      int    `json:"files"`
	OwnedBytes int64  `json:"ownedBytes"`
}

// Usage is what a branch owns, and by what.
type Usage struct {
	Branch Branch
	// OwnedBytes is the sum over Owners, in bytes.
	OwnedBytes int64
	// Owners come largest first.
	Owners []Owner
	// Unnamed says why relations go by their paths; empty where they have names.
	Unnamed string
}

// Usage tells which tables, indexes and other files own a branch's bytes. Names come
// from the branch's own server; for one that does not run, relations go by their paths.
func (e *Engine) Usage(ctx context.Context, name string) (Usage, error) {
	b, err := e.Branch(ctx, name)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Branch: b}
	status, err := e.ticket(ctx, contract.OpUsage, branchObject(name), map[string]string{contract.OptVolume: name})
	if err != nil {
		return u, err
	}
	u.OwnedBytes = status.OwnedBytes
	dataDir := ""
	if b.Manifest != nil {
		dataDir = b.Manifest.DataDir
	}
	u.Owners = owners(dataDir, status.Files)
	switch {
	case b.State != StateRunning:
		u.Unnamed = "it does not run"
	case b.Manifest == nil:
		u.Unnamed = "its seed's manifest is missing"
	default:
		if err := e.nameOwners(ctx, b, u.Owners); err != nil {
			if ctx.Err() != nil {
				return u, context.Cause(ctx)
			}
			u.Unnamed = "its server does not say: " + err.Error()
		}
	}
	return u, nil
}

// relationPath matches the files of relations below PGDATA: of a database, shared, or in
// a tablespace; with the fork and the segment that they may have.
var relationPath = regexp.MustCompile(`^((?:base/\d+|global|pg_tblspc/\d+/[^/]+/\d+)/\d+)(?:_(?:fsm|vm|init))?(?:\.\d+)?$`)

var tempPath = regexp.MustCompile(`(^|/)(pgsql_tmp|t\d+_\d+)`)

// serverFolders are the folders below PGDATA that hold one thing each.
var serverFolders = map[string]string{
	"pg_wal":  OwnerWAL,
	"pg_xact": OwnerStatus, "pg_multixact": OwnerStatus, "pg_subtrans": OwnerStatus,
	"pg_commit_ts": OwnerStatus, "pg_serial": OwnerStatus, "pg_twophase": OwnerStatus,
}

// owners sums files up, largest first. dataDir is PGDATA below the volume's root.
func owners(dataDir string, files []contract.FileUsage) []Owner {
	found := map[string]*Owner{}
	for _, f := range files {
		o := ownerOf(dataDir, f.Path)
		if known := found[o.Path]; known != nil {
			known.Files++
			known.OwnedBytes += f.OwnedBytes
			continue
		}
		o.Files, o.OwnedBytes = 1, f.OwnedBytes
		found[o.Path] = &o
	}
	list := make([]Owner, 0, len(found))
	for _, o := range found {
		list = append(list, *o)
	}
	sortOwners(list)
	return list
}

func sortOwners(list []Owner) {
	slices.SortFunc(list, func(a, b Owner) int {
		return cmp.Or(cmp.Compare(b.OwnedBytes, a.OwnedBytes), strings.Compare(a.Path, b.Path))
	})
}

// ownerOf says to what a file belongs. The path of what is no relation is a folder's,
// so that its files sum up.
func ownerOf(dataDir, file string) Owner {
	if dataDir != "" && dataDir != "." {
		below, ok := strings.CutPrefix(file, dataDir+"/")
		if !ok {
			return Owner{Name: "server files", Kind: OwnerServer, Path: "."}
		}
		file = below
	}
	if m := relationPath.FindStringSubmatch(file); m != nil {
		return Owner{Name: m[1], Kind: OwnerRelation, Path: m[1]}
	}
	if tempPath.MatchString(file) {
		return Owner{Name: "temporary files", Kind: OwnerTemp, Path: "base/pgsql_tmp"}
	}
	if path.Base(file) == "pg_internal.init" {
		return Owner{Name: "pg_internal.init", Kind: OwnerCache, Path: "global/pg_internal.init"}
	}
	top, _, _ := strings.Cut(file, "/")
	if kind := serverFolders[top]; kind == OwnerWAL {
		return Owner{Name: "WAL", Kind: kind, Path: top}
	} else if kind != "" {
		return Owner{Name: top, Kind: kind, Path: top}
	}
	return Owner{Name: "server files", Kind: OwnerServer, Path: "."}
}

// namesQuery gives every relation that has a file: its path, as of
// pg_relation_filepath, its name and kind, and the table that it belongs to. The table of
// an index on TOAST is the one that is toasted.
const namesQuery = `
SELECT pg_catalog.pg_relation_filepath(c.oid), n.nspname, c.relname, c.relkind,
       coalesce(tn.nspname || '.' || t.relname, '')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid
LEFT JOIN pg_catalog.pg_class o ON o.reltoastrelid = coalesce(i.indrelid, c.oid) AND o.reltoastrelid <> 0
LEFT JOIN pg_catalog.pg_class t ON t.oid = coalesce(o.oid, i.indrelid)
LEFT JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
WHERE pg_catalog.pg_relation_filepath(c.oid) IS NOT NULL`

// relationKinds are pg_class.relkind's.
var relationKinds = map[string]string{
	"r": OwnerTable, "m": OwnerMatView, "i": OwnerIndex, "S": OwnerSequence, "t": OwnerTOAST,
}

// nameOwners puts names on the relations of a branch that runs, database by database.
func (e *Engine) nameOwners(ctx context.Context, b Branch, list []Owner) error {
	byPath := map[string]*Owner{}
	databases := map[string]bool{}
	for i := range list {
		if o := &list[i]; o.Kind == OwnerRelation {
			byPath[o.Path] = o
			databases[databaseOf(o.Path)] = true
		}
	}
	if len(byPath) == 0 {
		return nil
	}
	rows, err := e.query(ctx, b, "postgres", `SELECT oid, datname FROM pg_catalog.pg_database WHERE datallowconn`)
	if err != nil {
		// A cluster need not have that database.
		if rows, err = e.query(ctx, b, b.Manifest.Database, `SELECT oid, datname FROM pg_catalog.pg_database WHERE datallowconn`); err != nil {
			return err
		}
	}
	shared := databases[""]
	for _, row := range rows {
		if !databases[row[0]] && !shared {
			continue
		}
		names, err := e.query(ctx, b, row[1], namesQuery)
		if err != nil {
			return fmt.Errorf("database %q: %w", row[1], err)
		}
		shared = false
		for _, n := range names {
			o := byPath[n[0]]
			if o == nil {
				continue
			}
			o.Name, o.Kind, o.Table = n[1]+"."+n[2], cmp.Or(relationKinds[n[3]], OwnerRelation), n[4]
			if databaseOf(o.Path) != "" {
				o.Database = row[1]
			}
		}
	}
	return nil
}

// databaseOf gives the OID of a relation's database, empty for a shared one.
func databaseOf(relation string) string {
	if dir := path.Dir(relation); dir != "global" {
		return path.Base(dir)
	}
	return ""
}

// query runs one query in a session of its own and gives the rows as text.
func (e *Engine) query(ctx context.Context, b Branch, database, sql string) ([][]string, error) {
	conn, err := e.connect(ctx, b, database)
	if err != nil {
		return nil, err
	}
	defer closeSession(ctx, conn)
	result := conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	if result.Err != nil {
		return nil, result.Err
	}
	rows := make([][]string, len(result.Rows))
	for i, row := range result.Rows {
		for _, value := range row {
			rows[i] = append(rows[i], string(value))
		}
	}
	return rows, nil
}

func closeSession(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	_ = conn.Close(ctx) // the server notices by itself
}

package settle

import (
	"fmt"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

const controlText = `pg_control version number:            1700
Database system identifier:           7713965648636252177
Database cluster state:               shut down
pg_control last modified:             Mon Nov 30 14:06:27 2026
Latest checkpoint's REDO location:    0/5000028
Latest checkpoint's REDO WAL file:    000000010000000000000005
Latest checkpoint's full_page_writes: on
Latest checkpoint's oldestCommitTsXid:0
wal_level setting:                    replica
wal_log_hints setting:                off
max_connections setting:              100
max_worker_processes setting:         8
max_wal_senders setting:              10
max_prepared_xacts setting:           7
max_locks_per_xact setting:           64
track_commit_timestamp setting:       off
WAL block size:                       8192
Bytes per WAL segment:                16777216
Data page checksum version:           1
`

func TestParseControlData(t *testing.T) {
	c, err := parseControlData(controlText)
	assert.NilError(t, err)
	assert.Equal(t, c.state, stateShutDown)
	assert.Equal(t, c.systemIdentifier, "7713965648636252177")
	assert.Equal(t, c.redoFile, "000000010000000000000005")
	assert.Equal(t, c.segmentSize, int64(16<<20))
	assert.Equal(t, c.blockSize, int64(8192))
	assert.Assert(t, c.checksums && c.fullPageWrites)
	assert.Equal(t, c.settings["max_prepared_transactions"], "7")

	_, err = parseControlData(strings.Replace(controlText, "max_wal_senders setting", "something else", 1))
	assert.ErrorContains(t, err, "unknown")
	_, err = parseControlData("")
	assert.ErrorContains(t, err, "unknown")
}

func TestRaise(t *testing.T) {
	control, err := parseControlData(controlText)
	assert.NilError(t, err)
	own := map[string]string{"max_connections": "50", "max_prepared_transactions": "7", "max_wal_senders": "20", "wal_level": "replica"}
	raised, differs := raise(own, control)
	assert.Assert(t, differs)
	assert.DeepEqual(t, raised, map[string]string{"max_connections": "100", "max_prepared_transactions": "7", "max_wal_senders": "20", "wal_level": "replica"})
	own["max_connections"] = "100"
	_, differs = raise(own, control)
	assert.Assert(t, !differs)
}

func TestBackupOutput(t *testing.T) {
	var seen []string
	out := &backupOutput{tail: newTail(3), progress: func(done, total int64) { seen = append(seen, fmt.Sprint(done, "/", total)) }}
	for _, chunk := range []string{
		"waiting for checkpoint\r", "     0/23000 kB (0%), 0/1 table", "space\n", "12345/23000 kB (53%), 1/2 tablespaces (...base/1)\r",
		"23001/23000 kB (100%), 1/1 tablespace\n", "pg_basebackup: error: no\n", "a\nb\nc\nunfinished",
	} {
		_, err := out.Write([]byte(chunk))
		assert.NilError(t, err)
	}
	out.finish()
	assert.DeepEqual(t, seen, []string{
		"0/23552000", "12641280/23552000", "23553024/23553025", "23553024/23553024",
	})
	assert.DeepEqual(t, out.tail.lines(), []string{"a", "b", "c"})
}

func TestTail(t *testing.T) {
	tail := newTail(2)
	fmt.Fprint(tail, "one\n\ntwo\r\nthr")
	assert.DeepEqual(t, tail.lines(), []string{"one", "two", "thr"})
	fmt.Fprint(tail, "ee\nfour\n", strings.Repeat("x", 3*maxLine))
	lines := tail.lines()
	assert.DeepEqual(t, lines[:2], []string{"three", "four"})
	assert.Equal(t, len(lines[2]), maxLine)
}

func TestBatches(t *testing.T) {
	tables := []table{{name: "huge", bytes: 10 * batchBytes}, {name: "big", bytes: batchBytes}, {name: "a", bytes: batchBytes / 2}, {name: "b", bytes: batchBytes / 2}}
	for i := range batchTables + 1 {
		tables = append(tables, table{name: fmt.Sprint("t", i)})
	}
	var sizes []int
	total := 0
	for _, batch := range batches(tables) {
		sizes = append(sizes, len(batch))
		total += len(batch)
	}
	assert.DeepEqual(t, sizes, []int{1, 1, batchTables, 3})
	assert.Equal(t, total, len(tables))
	assert.Equal(t, len(batches(nil)), 0)
}

func TestLibraries(t *testing.T) {
	assert.DeepEqual(t, libraries(`pg_cron, "my lib"`, "", " auto_explain "), []string{"pg_cron", "my lib", "auto_explain"})
}

func TestParseSourceKeepsThePasswordOutOfTheURL(t *testing.T) {
	s, err := parseSource(contract.Source{
		URL:      "postgres://app:inurl@db.example:6432/shop?sslmode=require&password=inquery&options=-c%20x%3Dy&keepalives=1&passfile=/x",
		Password: "right",
	})
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(s.url, "inurl") && !strings.Contains(s.url, "inquery") && !strings.Contains(s.url, "right"), s.url)
	assert.Assert(t, strings.Contains(s.url, "options=-c%20x%3Dy"), s.url)
	assert.Equal(t, s.config.Password, "right")
	assert.Equal(t, s.config.User, "app")
	assert.Equal(t, s.config.Database, "shop")
	assert.Equal(t, s.address(), "db.example:6432")
	assert.Assert(t, s.config.TLSConfig != nil)
	_, sent := s.config.RuntimeParams["keepalives"]
	assert.Assert(t, !sent)
	assert.Equal(t, s.replication().RuntimeParams["replication"], "true")
	_, sent = s.config.RuntimeParams["replication"]
	assert.Assert(t, !sent, "the copy shares its parameters")
}

func TestParseSourceRefusals(t *testing.T) {
	for url, want := range map[string]string{
		"mysql://a@b/c":                          "is not a Postgres URL",
		"host=x user=y":                          "is not a Postgres URL",
		"postgres://db/shop":                     "names no user",
		"postgres://app:sec%ret@db/shop":         "cannot be read",
		"postgres://app@db:port/shop":            "cannot be read",
		"postgres://app:hunter2@db/?sslmode=odd": "cannot be used",
	} {
		_, err := parseSource(contract.Source{URL: url, Password: "hunter2"})
		assert.ErrorContains(t, err, want, url)
		assert.Assert(t, !strings.Contains(err.Error(), "hunter2") && !strings.Contains(err.Error(), "sec%ret"), err)
	}
}

func TestQuoting(t *testing.T) {
	assert.Equal(t, quoteIdent(`a"b`), `"a""b"`)
	assert.Equal(t, quoteLiteral(`it's`), `'it''s'`)
	assert.Equal(t, quoteLiteral(`a\'b`), ` E'a\\''b'`)
	assert.Equal(t, quoteHBA("app_1"), "app_1")
	assert.Equal(t, quoteHBA("my app"), `"my app"`)
	assert.Equal(t, quoteHBA("all"), `"all"`)
	assert.Equal(t, escapeMapping("/a=b"), `/a\=b`)
}

func TestDataDir(t *testing.T) {
	dir, err := dataDir("/stage", ".")
	assert.NilError(t, err)
	assert.Equal(t, dir, "/stage/root")
	dir, err = dataDir("/stage", "18/docker")
	assert.NilError(t, err)
	assert.Equal(t, dir, "/stage/root/18/docker")
	for _, bad := range []string{"..", "/etc", "", "a/../../b"} {
		_, err = dataDir("/stage", bad)
		assert.Assert(t, err != nil, bad)
	}
	_, err = dataDir("stage", ".")
	assert.Assert(t, err != nil)
}

package volumedriver

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Of struct ControlFileData in src/include/catalog/pg_control.h, the same in every
// major: a uint64 system_identifier, two uint32 versions, then enum DBState state. The
// file is in the byte order of the machine that wrote it, which is this one.
const (
	controlSystemID   = 0
	controlState      = 16
	controlBytes      = 20
	controlShutDown   = 1 // DB_SHUTDOWNED
	controlFile       = "global/pg_control"
	versionFile       = "PG_VERSION"
	maxControlBytes   = 64 << 10 // PG_CONTROL_FILE_SIZE is 8192
	forbiddenDirModes = 0o027    // PG_MODE_MASK_GROUP, src/include/common/file_perm.h
)

// unsettled are files whose presence means that a server would begin with recovery, or
// that one is running, and who puts them there.
var unsettled = []struct{ file, why string }{
	{"backup_label", "a base backup that was never recovered"},
	{"tablespace_map", "a base backup that was never recovered"},
	{"postmaster.pid", "a server that runs or was killed"},
	{"standby.signal", "a standby"},
	{"recovery.signal", "a recovery that did not end"},
}

// parseManifest checks that a manifest says what a branch needs, and can be trusted
// with paths.
func parseManifest(data []byte) (*contract.Manifest, error) {
	var m contract.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s is no JSON that makes sense: %w", manifestFile, err)
	}
	switch {
	case m.Format > contract.ManifestFormat:
		return nil, fmt.Errorf("%s has format %d, and this plugin knows up to %d", manifestFile, m.Format, contract.ManifestFormat)
	case m.Format < 1:
		return nil, fmt.Errorf("%s has no format", manifestFile)
	case m.Major < 1:
		return nil, fmt.Errorf("%s has no major version", manifestFile)
	case !localPath(m.DataDir):
		return nil, fmt.Errorf("dataDir %q is no clean relative path", m.DataDir)
	case m.WALHead != "" && (!localPath(m.WALHead) || path.Dir(m.WALHead) != "pg_wal"):
		return nil, fmt.Errorf("walHead %q is no file in pg_wal", m.WALHead)
	case !path.IsAbs(m.MountPath):
		return nil, fmt.Errorf("mountPath %q is no absolute path", m.MountPath)
	case m.UID < 0 || m.GID < 0:
		return nil, fmt.Errorf("uid %d and gid %d are no owner", m.UID, m.GID)
	}
	return &m, nil
}

// localPath reports whether p is a clean slash-separated path that stays below where
// it starts.
func localPath(p string) bool { return filepath.IsLocal(p) && path.Clean(p) == p }

// checkCluster checks that what lies at root, below the data root, is a cluster that
// was shut down cleanly, of the version and owner that the manifest says.
func checkCluster(root *os.Root, m *contract.Manifest) error {
	info, err := root.Lstat(m.DataDir)
	if err != nil {
		return fmt.Errorf("there is no %s: %w", m.DataDir, err)
	}
	if err := checkOwner(info, m); err != nil {
		return err
	}
	at := func(name string) string { return path.Join(m.DataDir, name) }
	version, err := readRegular(root, at(versionFile), maxControlBytes)
	if err != nil {
		return fmt.Errorf("it holds no cluster: %w", err)
	}
	if got := strings.TrimSpace(string(version)); got != strconv.Itoa(m.Major) {
		return fmt.Errorf("it is a cluster of major %q, and the manifest says %d", got, m.Major)
	}
	for _, u := range unsettled {
		if _, err := root.Lstat(at(u.file)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it holds %s, the sign of %s", u.file, u.why)
		}
	}
	if err := checkControl(root, at(controlFile), m); err != nil {
		return err
	}
	if m.WALHead != "" {
		f, _, err := openRegular(root, at(m.WALHead))
		if err != nil {
			return fmt.Errorf("its walHead is missing: %w", err)
		}
		f.Close()
	}
	return nil
}

// checkOwner checks what the server itself checks before it starts
// (src/backend/utils/init/miscinit.c, checkDataDir).
func checkOwner(info fs.FileInfo, m *contract.Manifest) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", m.DataDir)
	case !ok || int(st.Uid) != m.UID || int(st.Gid) != m.GID:
		return fmt.Errorf("%s is owned by %d:%d, and the manifest says %d:%d", m.DataDir, st.Uid, st.Gid, m.UID, m.GID)
	case info.Mode().Perm()&forbiddenDirModes != 0:
		return fmt.Errorf("%s has mode %#o, which Postgres refuses", m.DataDir, info.Mode().Perm())
	}
	return nil
}

// checkControl checks that the server was shut down cleanly, and whose cluster it is.
func checkControl(root *os.Root, name string, m *contract.Manifest) error {
	control, err := readRegular(root, name, maxControlBytes)
	if err != nil {
		return fmt.Errorf("it has no control file: %w", err)
	}
	if len(control) < controlBytes {
		return fmt.Errorf("%s has %d bytes only", name, len(control))
	}
	if state := binary.NativeEndian.Uint32(control[controlState:]); state != controlShutDown {
		return fmt.Errorf("its server was not shut down cleanly (pg_control state %d)", state)
	}
	id := strconv.FormatUint(binary.NativeEndian.Uint64(control[controlSystemID:]), 10)
	if m.SystemIdentifier != "" && m.SystemIdentifier != id {
		return fmt.Errorf("its system identifier is %s, and the manifest says %s", id, m.SystemIdentifier)
	}
	return nil
}

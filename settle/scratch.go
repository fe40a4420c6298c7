package settle

import (
	"os"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
	"golang.org/x/sys/unix"
)

// scratch is a private directory of the account outside the staging volume, in
// memory where the container has a tmpfs. Nothing secret is ever put there.
type scratch struct{ dir string }

func newScratch(a account) (scratch, error) {
	parent := os.TempDir()
	// Every container has /dev/shm unless it was started with --ipc=none.
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) == nil && fs.Type == unix.TMPFS_MAGIC && unix.Access("/dev/shm", unix.W_OK) == nil {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "pgoverlay-")
	if err != nil {
		return scratch{}, err
	}
	if err := a.own(dir); err != nil {
		_ = os.RemoveAll(dir)
		return scratch{}, err
	}
	return scratch{dir: dir}, nil
}

func (s scratch) remove() { _ = os.RemoveAll(s.dir) }

// passFile returns a libpq password file that exists in memory only and under no
// name: the child inherits it as descriptor 3 and libpq opens it as
// /proc/self/fd/3. It is gone with the last process that holds it, however that
// ends. libpq takes it because it is a regular file of the account with mode 0600
// (passwordFromFile in fe-connect.c).
func passFile(password string, a account) (*os.File, error) {
	if strings.ContainsAny(password, "\n\r\x00") {
		return nil, fail(contract.AgentErrPassword, "give the role a password of one line",
			"the password contains a line break, which a libpq password file cannot hold")
	}
	escaped := strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(password)
	return memoryFile("pgpass", "*:*:*:*:"+escaped+"\n", a)
}

// memoryFile is a file of the account as passFile describes it.
func memoryFile(name, text string, a account) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err == nil && a.drop {
		err = f.Chown(a.uid, a.gid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

package settle

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// account is whom Postgres' programs run as and who owns the cluster: the image's
// user postgres where the agent is root, else the agent's own user.
type account struct {
	uid, gid int
	// drop says that children must change to the account.
	drop bool
}

func postgresAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return account{}, fail(contract.AgentErrFailed, "use an image of Postgres, such as postgres:17",
			"the image has no user postgres")
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return account{}, fmt.Errorf("uid of the user postgres: %w", err)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, fmt.Errorf("gid of the user postgres: %w", err)
	}
	return account{uid: uid, gid: gid, drop: true}, nil
}

// attributes are those of a child: a process group of its own, so that all of it
// can be ended, and onDeath as the signal it gets should the agent die unasked.
func (a account) attributes(onDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// own gives the file or directory to the account. A symbolic link is not followed.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// mkdir makes a directory of the account with exactly that mode; an existing one
// gets owner and mode.
func (a account) mkdir(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil && !os.IsExist(err) {
		return err
	}
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	return a.own(path)
}

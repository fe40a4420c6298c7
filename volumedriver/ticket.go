package volumedriver

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// createTicket does the work of a ticket and keeps its answer for Get. The ticket's
// own name is locked apart from the volumes' names, so that two tickets about each
// other's names cannot wait for each other.
func (d *Driver) createTicket(ctx context.Context, name string, o options) error {
	object := named("ticket", name)
	unlock, err := d.locks.lock(ctx, "ticket/"+name)
	if err != nil {
		return failed(object, "wait for another request about it", err)
	}
	defer unlock()
	done, err := d.reserveTicket(object, name, o)
	if done || err != nil {
		return err
	}
	status := &contract.Status{Kind: contract.KindTicket}
	switch o.op {
	case contract.OpStatus:
		status.Plugin, err = d.pluginStatus()
	case contract.OpSeal:
		status.SealedAs, err = d.seal(ctx, o.target)
	case contract.OpReset:
		err = d.reset(ctx, o.target)
	case contract.OpUsage:
		status.Files, err = d.filesOwned(o.target)
		for _, f := range status.Files {
			status.OwnedBytes += f.OwnedBytes
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.tickets, name)
		return err
	}
	d.tickets[name].status = status
	return nil
}

// reserveTicket takes the ticket's name. done tells that this very ticket was served
// before.
func (d *Driver) reserveTicket(object, name string, o options) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for old, t := range d.tickets {
		if t.status != nil && now.Sub(t.created) > ticketLife {
			delete(d.tickets, old)
		}
	}
	if t := d.tickets[name]; t != nil {
		if t.opts != o {
			return false, refuse(object, "exists already with other options", "use a fresh name for each ticket")
		}
		return true, nil
	}
	if d.volumes[name] != nil {
		return false, refuse(object, "a volume of that name exists", "use a fresh name for each ticket")
	}
	d.tickets[name] = &ticket{opts: o, created: now.UTC()}
	return false, nil
}

func (d *Driver) isTicket(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tickets[name] != nil
}

// removeTicket forgets a ticket that was served and reports whether there was one.
func (d *Driver) removeTicket(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.tickets[name]
	if t == nil || t.status == nil {
		return false
	}
	delete(d.tickets, name)
	return true
}

// pluginStatus answers op=status.
func (d *Driver) pluginStatus() (*contract.PluginStatus, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(d.store.path, &disk); err != nil {
		return nil, failed("data root "+d.store.path, "ask for its space", err)
	}
	// The probe also tells the copy-up mode.
	unfit := ""
	if err := d.checkFileSystem("volume plugin pgoverlay"); err != nil {
		unfit = err.Error()
	}
	d.checkKernel()
	s := &contract.PluginStatus{
		Version: d.cfg.Version, Runtime: d.runtime.id(), StoreID: d.StoreID(),
		FileSystem: fileSystemOf(d.store.path), CopyUpMode: d.probe.copyUpMode(), Kernel: kernelRelease(),
		TotalBytes: int64(disk.Blocks) * disk.Bsize, FreeBytes: int64(disk.Bavail) * disk.Bsize,
		Unfit: unfit,
	}
	s.CowMode, s.CowReason = d.cowOfEngine()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.volumes {
		if v.phase == creating {
			continue
		}
		s.Volumes = append(s.Volumes, v.name)
		switch v.kind {
		case contract.KindSeed:
			s.Seeds++
		case contract.KindBranch:
			s.Branches++
		}
	}
	slices.Sort(s.Volumes)
	return s, nil
}

// kernelRelease is what `uname -r` prints.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

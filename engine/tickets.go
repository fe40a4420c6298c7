package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func isNotFound(err error) bool { return cerrdefs.IsNotFound(err) }

// nonce gives eight random bytes in hex, for names that must be fresh.
func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b[:])
}

// ticket has the volume plugin do an operation that is not the creation of a
// volume, and gives its answer. The ticket itself never stays.
func (e *Engine) ticket(ctx context.Context, op, object string, options map[string]string) (contract.Status, error) {
	opts := map[string]string{contract.OptOp: op}
	for k, v := range options {
		opts[k] = v
	}
	name := "pgbranch-" + op + "-" + nonce()
	defer func() {
		ctx, cancel := cleanup(ctx)
		defer cancel()
		_ = e.api.VolumeRemove(ctx, name, true) // the plugin forgets tickets by itself
	}()
	if _, err := e.createVolume(ctx, volume.CreateOptions{Name: name, DriverOpts: opts}); err != nil {
		return contract.Status{}, translate(err, object)
	}
	_, status, err := e.inspect(ctx, name, object)
	return status, err
}

package engine

import (
	"context"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// PluginStatus gives what the volume plugin says of itself, its data root's space
// included.
//
// It fails with KindSetup where there is none that runs.
func (e *Engine) PluginStatus(ctx context.Context) (contract.PluginStatus, error) {
	if err := e.requirePlugin(ctx); err != nil {
		return contract.PluginStatus{}, err
	}
	status, err := e.ticket(ctx, contract.OpStatus, "volume plugin pgoverlay", nil)
	if err != nil {
		return contract.PluginStatus{}, err
	}
	if status.Plugin == nil {
		return contract.PluginStatus{}, &Error{Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "does not say what it is"}
	}
	return *status.Plugin, nil
}

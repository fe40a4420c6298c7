package volumedriver

import (
	"os"
	"strings"
)

// The pin file remembers which store the plugin served. It lies in the plugin's
// propagated mount, which `docker plugin upgrade` keeps, while it puts the data mount's
// source back to its default (moby plugin/manager_linux.go, Manager.upgradePlugin). A
// plugin that somebody installed with another source, and never set up with a store's id,
// would else come up on an empty store and answer that no volume exists: at that answer
// the Engine drops each volume's labels and references.

// readPin gives the id in the pin file, empty where there is none.
func readPin(name string) string {
	if name == "" {
		return ""
	}
	raw, err := os.ReadFile(name)
	id := strings.TrimSpace(string(raw))
	if err != nil || !isID(id) {
		return ""
	}
	return id
}

// writePin remembers an id, in one step.
func writePin(name, id string) error {
	if name == "" || readPin(name) == id {
		return nil
	}
	if err := os.WriteFile(name+".new", []byte(id+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

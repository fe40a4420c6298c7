// Command docker-pgbranch is the Docker CLI plugin `docker pgbranch`.
package main

import (
	"os"

	"github.com/docker/cli/cli-plugins/metadata"
	cliplugin "github.com/docker/cli/cli-plugins/plugin"
	"github.com/docker/cli/cli/command"

	"github.com/pgbranch/docker-pgbranch/plugin"
)

func main() {
	// Run by its own name it is not told its plugin name, as docker would.
	if cliplugin.RunningStandalone() && (len(os.Args) < 2 || os.Args[1] != "pgbranch") {
		os.Args = plugin.ProviderArgs(os.Args[1:])
	}
	cliplugin.Run(plugin.NewRootCommand, metadata.Metadata{
		SchemaVersion:    "0.1.0",
		Vendor:           "The pgbranch authors",
		Version:          plugin.Version,
		ShortDescription: "Copy-on-write branches of Postgres",
		URL:              "https://github.com/pgbranch/docker-pgbranch",
	}, command.WithUserAgent("pgbranch/"+plugin.Version))
}

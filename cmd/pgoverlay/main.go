// Command pgoverlay is the volume plugin (serve), and, copied into volumes, the agent
// that works on clusters inside containers (agent).
package main

import (
	"fmt"
	"os"
)

// version is set by the build.
var version = "dev"

const usage = `usage: pgoverlay COMMAND

  serve        serve the Docker volume plugin protocol
  agent VERB   work on a cluster inside a container
  check        say whether this build would take a data root
  wipe         delete a data root that no plugin uses
  version      print the version

exit status: 0 done, 1 failed, 2 wrong usage
`

// commands are the subcommands by name. Each gets the arguments after its name and
// gives the exit status.
var commands = map[string]func(args []string) int{
	"serve": serve,
	"version": func([]string) int {
		fmt.Println(version)
		return 0
	},
}

func main() {
	if len(os.Args) > 1 {
		if run := commands[os.Args[1]]; run != nil {
			os.Exit(run(os.Args[2:]))
		}
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
}

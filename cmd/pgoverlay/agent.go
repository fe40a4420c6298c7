package main

import (
	"os"

	"github.com/pgbranch/docker-pgbranch/settle"
)

func init() { commands["agent"] = agent }

// agent is `pgoverlay agent VERB`: the work inside a container.
func agent(args []string) int { return settle.Run(args, os.Stdin, os.Stdout, os.Stderr) }

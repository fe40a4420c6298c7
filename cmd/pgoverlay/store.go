package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/pgbranch/docker-pgbranch/volumedriver"
	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

func init() {
	commands[contract.CommandCheck] = checkStore
	commands[contract.CommandWipe] = wipeStore
}

// checkStore is `pgoverlay check`: the store's id on standard output, or why a plugin
// of this build would not take it, on standard error. A plugin that refuses its data
// root does not listen, and dockerd keeps what it says to its own log.
func checkStore(args []string) int {
	return aboutStore("check", args, func(dir, id string) error {
		found, err := volumedriver.CheckStore(dir, id)
		if err == nil {
			fmt.Println(found)
		}
		return err
	})
}

// wipeStore is `pgoverlay wipe`: it deletes a store that no plugin uses.
func wipeStore(args []string) int {
	return aboutStore("wipe", args, func(dir, id string) error {
		return volumedriver.WipeStore(dir, id, slog.Default())
	})
}

func aboutStore(verb string, args []string, do func(dir, id string) error) int {
	flags := flag.NewFlagSet("pgoverlay "+verb, flag.ContinueOnError)
	data := flags.String("data", defaultData, "data root")
	id := flags.String("id", "", "id of the store that it must be; empty is any")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return 2
	}
	if err := do(*data, *id); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

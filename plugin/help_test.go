package plugin

import (
	"bytes"
	"strings"
	"testing"

	"github.com/docker/cli/cli/command"
	"gotest.tools/v3/golden"
)

// What the verbs promise is their help.
func TestHelp(t *testing.T) {
	for _, verb := range []string{"setup", "uninstall", "prune", "create", "doctor"} {
		var out bytes.Buffer
		dockerCLI, err := command.NewDockerCli(command.WithCombinedStreams(&out))
		if err != nil {
			t.Fatal(err)
		}
		root := NewRootCommand(dockerCLI)
		root.SetOut(&out)
		root.SetArgs([]string{verb, "--help"})
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		golden.Assert(t, strings.TrimSpace(out.String())+"\n", "help-"+verb+".golden")
	}
}

package settle

import (
	"flag"
	"fmt"
	"io"
	"net"
)

// runDial joins standard input and output to the server's unix socket. The end of
// standard input closes only that half: what the server still has to say arrives.
// It returns when the server has closed the connection.
func runDial(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("pgoverlay agent dial", flag.ContinueOnError)
	flags.SetOutput(stderr)
	socket := flags.String("socket", socketDir+"/.s.PGSQL.5432", "the server's unix socket")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return exitUsage
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: *socket, Net: "unix"})
	if err != nil {
		fmt.Fprintf(stderr, "pgoverlay agent dial: %s\n", err)
		return exitFailed
	}
	defer conn.Close()
	go func() {
		// A failed write means that the server is gone, and the other half sees that.
		_, _ = io.Copy(conn, stdin)
		_ = conn.CloseWrite()
	}()
	if _, err := io.Copy(stdout, conn); err != nil {
		fmt.Fprintf(stderr, "pgoverlay agent dial: %s\n", err)
		return exitFailed
	}
	return exitOK
}

// Package settle is the work of `pgoverlay agent` inside a container: it looks at
// a source server, copies it, and settles the copy, so that a seed can be made of
// it; in branches it waits for the server and bridges to its socket.
//
// The protocol is package contract's: one request as JSON on standard input,
// contract.AgentEvent objects, one a line, on standard output. When standard
// input ends or a signal asks for it, the agent ends its children, undoes what it
// began and exits.
package settle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// Exit statuses of the agent.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// verb is the work of a verb that reads a request and answers in its last event.
type verb func(context.Context, *input, *events) (contract.AgentEvent, error)

var requests = map[string]verb{
	contract.AgentProbe:      runProbe,
	contract.AgentBaseBackup: runBaseBackup,
	contract.AgentDump:       runDump,
	contract.AgentRestore:    runRestore,
	contract.AgentSettle:     runSettle,
	contract.AgentLogin:      runLogin,
	contract.AgentPreflight:  runPreflight,
}

// errInterrupted is the cause of a context that a signal or the end of standard
// input has cancelled.
type errInterrupted struct{ by string }

func (e errInterrupted) Error() string { return "interrupted: " + e.by }

// Run carries out `pgoverlay agent VERB ARGS…` and returns its exit status: 0, 1
// for a failure that the last event describes, 2 for wrong usage.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return usage(stderr, "which verb?")
	}
	name, rest := args[0], args[1:]
	switch name {
	case contract.AgentReady:
		return runReady(rest, stdout, stderr)
	case contract.AgentDial:
		return runDial(rest, stdin, stdout, stderr)
	}
	run, known := requests[name]
	if !known {
		return usage(stderr, fmt.Sprintf("unknown verb %q", name))
	}
	if len(rest) > 0 {
		return usage(stderr, fmt.Sprintf("%s takes its request on standard input and no argument", name))
	}
	return serve(name, run, stdin, stdout)
}

func usage(stderr io.Writer, problem string) int {
	verbs := []string{contract.AgentReady, contract.AgentDial}
	for verb := range requests {
		verbs = append(verbs, verb)
	}
	slices.Sort(verbs)
	fmt.Fprintf(stderr, "pgoverlay agent: %s\nverbs: %s\n", problem, strings.Join(verbs, ", "))
	return exitUsage
}

// serve runs one verb that takes a request, bounded by its caller's life.
func serve(name string, run verb, stdin io.Reader, stdout io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	stop := cancelOnSignal(cancel)
	defer stop()

	in := &input{r: stdin, ended: func() { cancel(errInterrupted{"the caller is gone"}) }}
	ev := newEvents(stdout)
	answer, err := run(ctx, in, ev)
	if err != nil {
		answer = contract.AgentEvent{Error: describe(ctx, name, err)}
	}
	answer.CPUSeconds = cpuSeconds()
	ev.last(answer)
	if err != nil {
		return exitFailed
	}
	return exitOK
}

// cpuSeconds is the processor time of the agent and of the children that have ended,
// with theirs.
func cpuSeconds() float64 {
	var sum time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if syscall.Getrusage(who, &usage) == nil {
			sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return sum.Seconds()
}

// cancelOnSignal cancels at the first SIGTERM, SIGINT or SIGHUP. Later ones
// change nothing: what was begun is being undone.
func cancelOnSignal(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cancel(errInterrupted{s.String()})
		case <-done:
		}
	}()
	return func() { signal.Stop(signals); close(done) }
}

// input is standard input: one request, and then the sign that the caller lives.
type input struct {
	r io.Reader
	// ended is called when standard input ends after the request.
	ended func()
}

// request decodes the one request into req and begins to watch for the caller's end.
// A caller that was killed before the container had started gives neither a request nor
// an end of the input, so there is a limit: contract.RequestWithin.
func (in *input) request(req any) error {
	rest, err := in.requestBefore(req)
	if err == nil {
		in.watch(rest)
	}
	return err
}

// watch notices the caller's end: that of what follows the request.
func (in *input) watch(rest io.Reader) {
	go func() {
		_, _ = io.Copy(io.Discard, rest)
		in.ended()
	}()
}

// requestBefore decodes the one request and gives what follows it.
func (in *input) requestBefore(req any) (rest io.Reader, err error) {
	decoded, alive := make(chan error, 1), make(chan struct{}, 1)
	decoder := json.NewDecoder(signs{in.r, alive})
	go func() { decoded <- decoder.Decode(req) }()
	for waiting := true; waiting; {
		select {
		case err = <-decoded:
			waiting = false
		case <-alive:
		case <-time.After(contract.RequestWithin):
			err, waiting = errors.New("there is no caller"), false
		}
	}
	if err != nil {
		// The decoder's error may quote the request, and that may hold a password.
		return nil, fail(contract.AgentErrFailed, "", "there is no valid request on standard input")
	}
	return io.MultiReader(decoder.Buffered(), in.r), nil
}

// signs is a reader that tells of each read that gave something.
type signs struct {
	io.Reader
	alive chan<- struct{}
}

func (s signs) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if n > 0 {
		select {
		case s.alive <- struct{}{}:
		default:
		}
	}
	return n, err
}

// describe makes the AgentError of any error that a verb ends with.
func describe(ctx context.Context, verb string, err error) *contract.AgentError {
	var interrupted errInterrupted
	if errors.As(context.Cause(ctx), &interrupted) {
		return fail(contract.AgentErrInterrupted, "", "%s was %s", verb, interrupted.Error())
	}
	var known *contract.AgentError
	if errors.As(err, &known) {
		return known
	}
	return fail(contract.AgentErrFailed, "", "%s: %s", verb, err)
}

// fail makes an AgentError.
func fail(code, hint, format string, args ...any) *contract.AgentError {
	return &contract.AgentError{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}

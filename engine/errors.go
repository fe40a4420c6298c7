package engine

import (
	"errors"
	"fmt"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
)

// Kind sorts failures by what a caller can do about them. The command tree maps
// each to one exit code.
type Kind int

const (
	// KindOther is a failure that fits no other kind.
	KindOther Kind = iota
	// KindInvalid is input that can never work.
	KindInvalid
	// KindNotFound is a seed, branch, image or network that does not exist.
	KindNotFound
	// KindConflict is a name in use, or an object that something still holds.
	KindConflict
	// KindSetup is an Engine that cannot be reached, or has no volume plugin.
	KindSetup
	// KindSource is a source server that cannot be copied.
	KindSource
)

// Error is a failure as a person meets it.
type Error struct {
	Kind Kind
	// Object names what failed: `branch "x"`, `seed "shop"`, `volume plugin`.
	Object string
	// Cause says why, in lower case and without a full stop.
	Cause string
	// Hint says what to do next. It is printed as a second line.
	Hint string
	// Log holds the last lines of a server or tool that failed.
	Log []string
	// Err is the error beneath, if there is one that Cause does not already tell.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Object != "" {
		b.WriteString(e.Object + ": ")
	}
	b.WriteString(e.Cause)
	if e.Err != nil {
		if e.Cause != "" {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the error beneath.
func (e *Error) Unwrap() error { return e.Err }

// KindOf gives the kind of an error, KindOther for one that is not ours.
func KindOf(err error) Kind {
	var ours *Error
	if errors.As(err, &ours) {
		return ours.Kind
	}
	return KindOther
}

func branchObject(name string) string { return fmt.Sprintf("branch %q", name) }
func seedObject(name string) string   { return fmt.Sprintf("seed %q", name) }

// translate turns an error of the Engine API into ours, with object as its
// subject. An error that is ours already passes through.
func translate(err error, object string) error {
	var ours *Error
	if err == nil || errors.As(err, &ours) {
		return err
	}
	if client.IsErrConnectionFailed(err) {
		return &Error{
			Kind: KindSetup, Object: "docker engine", Cause: "cannot be reached", Err: err,
			Hint: "start it, or choose another with `docker context use` or DOCKER_HOST",
		}
	}
	// The volume store wraps a missing plugin's error in text only
	// (moby volume/drivers/extpoint.go, Store.lookup; plugin/errors.go).
	text := err.Error()
	switch {
	case strings.Contains(text, "found but disabled"):
		return pluginDisabled(err)
	case strings.Contains(text, "error looking up volume plugin"):
		return pluginMissing()
	}
	if own, ok := driverText(text); ok {
		// The driver names its object itself, and puts a hint on a second line.
		cause, hint, _ := strings.Cut(own, "\n")
		return &Error{Kind: KindOther, Cause: cause, Hint: hint}
	}
	failure := &Error{Object: object, Cause: strings.TrimPrefix(text, "Error response from daemon: ")}
	switch {
	case cerrdefs.IsNotFound(err):
		failure.Kind = KindNotFound
	case cerrdefs.IsConflict(err):
		failure.Kind = KindConflict
	case cerrdefs.IsInvalidArgument(err):
		failure.Kind = KindInvalid
	}
	return failure
}

// driverText gives a volume driver's own words, without what the Engine puts
// before them: "Error response from daemon: create X: VolumeDriver.Create: ".
func driverText(text string) (string, bool) {
	for _, call := range []string{"VolumeDriver.Create: ", "VolumeDriver.Mount: ", "VolumeDriver.Remove: "} {
		if _, own, ok := strings.Cut(text, call); ok {
			return own, true
		}
	}
	return "", false
}

// networkMissing gives the error for a network that does not exist, nil for any
// other error: the Engine says so only when the container is started.
func networkMissing(err error, network string) error {
	if !strings.Contains(err.Error(), "network "+network+" not found") {
		return nil
	}
	return &Error{Kind: KindNotFound, Object: fmt.Sprintf("network %q", network), Cause: "does not exist",
		Hint: "`docker network ls` lists those that do"}
}

func pluginMissing() *Error {
	return &Error{
		Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "is not installed in this engine",
		Hint: "run `docker pgbranch setup`",
	}
}

func pluginDisabled(err error) *Error {
	return &Error{
		Kind: KindSetup, Object: "volume plugin pgoverlay", Cause: "is installed but disabled", Err: err,
		Hint: "run `docker pgbranch setup`, which enables it or says why it cannot start",
	}
}

package volumedriver

import (
	"errors"
	"fmt"
)

// Error is a refusal or failure as a user of Docker meets it. Docker shows its
// text verbatim after "VolumeDriver.Create: ", so it names the object, says what
// is wrong with it and, on a line of its own, what to do next.
type Error struct {
	// Object is what the error is about: `branch "x"`.
	Object string
	// Cause is what is wrong, lower case, without a full stop.
	Cause string
	// Hint is what to do next; it may be empty.
	Hint string
	// Err is the error underneath; it may be nil.
	Err error
}

// Error gives the text that Docker shows.
func (e *Error) Error() string {
	s := e.Object + ": " + e.Cause
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += "\n" + e.Hint
	}
	return s
}

// Unwrap gives the error underneath.
func (e *Error) Unwrap() error { return e.Err }

// refuse makes an Error without an error underneath.
func refuse(object, cause, hint string) *Error {
	return &Error{Object: object, Cause: cause, Hint: hint}
}

// failed makes an Error about something that should have worked. An err that is
// an Error already is passed through, since it says more.
func failed(object, doing string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return err
	}
	return &Error{Object: object, Cause: "cannot " + doing, Err: err}
}

// named gives an object as errors name it: `branch "x"`.
func named(kind, name string) string { return fmt.Sprintf("%s %q", kind, name) }

// errNotFound marks the true absence of a volume. Get answers with no other
// error: dockerd's VolumeStore.lookupVolume (volume/service/store.go) takes every
// error that is no net.Error for absence, and then drops the volume's labels,
// options and references.
var errNotFound = errors.New("no such volume")

func notFound(name string) error {
	return &Error{Object: named("volume", name), Cause: "does not exist here", Err: errNotFound}
}

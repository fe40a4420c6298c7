package dumpfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A dump goes to the agent behind its request, on the same standard input, in frames of
// a length, four bytes with the greatest first, and so many bytes. A length of 0 ends it:
// an end of the input before that says that the caller is gone.

// frameBytes is the size of a full frame.
const frameBytes = 64 << 10

// ErrGone is the end of the input in front of the end of the dump.
var ErrGone = errors.New("the dump ends before its last frame")

// Send writes all of r as frames, and their end. readErr is r's failure, and writeErr
// that of w; only one is set.
func Send(w io.Writer, r io.Reader) (readErr, writeErr error) {
	buffer := make([]byte, 4+frameBytes)
	for {
		n, err := io.ReadFull(r, buffer[4:])
		if n > 0 {
			binary.BigEndian.PutUint32(buffer, uint32(n))
			if _, err := w.Write(buffer[:4+n]); err != nil {
				return nil, err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			_, err = w.Write(make([]byte, 4))
			return nil, err
		}
		if err != nil {
			return err, nil
		}
	}
}

// Receive gives the dump whose frames are on r. Its Read gives io.EOF after the last
// frame and ErrGone where r ends before.
func Receive(r io.Reader) io.Reader { return &frames{r: r} }

type frames struct {
	r    io.Reader
	left int
	err  error
}

func (f *frames) Read(p []byte) (int, error) {
	if f.err == nil && f.left == 0 {
		f.err = f.next()
	}
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	if err != nil {
		f.err = ErrGone
		return n, f.err
	}
	return n, nil
}

func (f *frames) next() error {
	var head [4]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return ErrGone
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > frameBytes {
		return fmt.Errorf("a frame of %d bytes", length)
	}
	if f.left = int(length); f.left == 0 {
		return io.EOF
	}
	return nil
}

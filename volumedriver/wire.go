package volumedriver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/docker/go-plugins-helpers/sdk"
	protocol "github.com/docker/go-plugins-helpers/volume"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// activation is the answer to Plugin.Activate.
const activation = `{"Implements": ["VolumeDriver"]}`

// maxRequestBytes bounds a request. dockerd's are a name, an id and a few options.
const maxRequestBytes = 1 << 20

// wire translates between HTTP and a Driver. Its handlers are its own, because the
// helper library's hide the request's context, which tells that dockerd gave up, and
// take an empty body for an error of the JSON.
type wire struct {
	driver *Driver
	log    *slog.Logger
	// busy counts the requests under way, for a shutdown that lets them end.
	busy sync.WaitGroup
}

// errEmptyRequest answers a request that lost its body. After a transport error, and after
// a timeout of its own, dockerd sends the request again with the body it has already read, so with none
// (pkg/plugins/client.go, callWithRetry).
var errEmptyRequest = refuse("request", "came without content, because the plugin was restarted, or took too long, while it was under way", "please retry")

// handler gives the protocol's routes.
func (w *wire) handler() sdk.Handler {
	h := sdk.NewHandler(activation)
	w.route(h, "Create", w.create)
	w.route(h, "Remove", w.remove)
	w.route(h, "Mount", w.mount)
	w.route(h, "Unmount", w.unmount)
	w.route(h, "Get", w.get)
	w.route(h, "Path", w.path)
	w.route(h, "List", w.list)
	w.route(h, "Capabilities", w.capabilities)
	return h
}

// verb serves one request whose body is given and not empty, save for the verbs that
// have none.
type verb func(r *http.Request, body []byte) (any, error)

func (w *wire) route(h sdk.Handler, name string, serve verb) {
	h.HandleFunc("/VolumeDriver."+name, func(rw http.ResponseWriter, r *http.Request) {
		w.busy.Add(1)
		defer w.busy.Done()
		start := time.Now()
		// The body is read to its end first: only then does the server notice that the
		// client has gone, and end the context.
		body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxRequestBytes))
		var answer any
		if err == nil {
			answer, err = serve(r, body)
		}
		if errors.Is(err, errHangUp) {
			panic(http.ErrAbortHandler)
		}
		w.log.Debug("request", "verb", name, "body", string(body), "took", time.Since(start), "error", err)
		if err != nil {
			if !errors.Is(err, errNotFound) {
				w.log.Warn("refused or failed", "verb", name, "body", string(body), "error", err)
			}
			sdk.EncodeResponse(rw, protocol.NewErrorResponse(err.Error()), true)
			return
		}
		after, ok := answer.(sent)
		if !ok {
			sdk.EncodeResponse(rw, answer, false)
			return
		}
		sdk.EncodeResponse(rw, after.answer, false)
		if http.NewResponseController(rw).Flush() == nil {
			after.then()
		}
	})
}

// sent is an answer with what is to be done once it is on its way.
type sent struct {
	answer any
	then   func()
}

// errHangUp ends a request without an answer. That is the only thing that dockerd
// takes for "unreachable": any answer with an error to Get makes it forget the volume's
// labels and references (volume/service/store.go, lookupVolume).
var errHangUp = errors.New("hang up")

// decode reads a request's body into v.
func decode(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return errEmptyRequest
	}
	if err := json.Unmarshal(body, v); err != nil {
		return failed("request", "read it", err)
	}
	return nil
}

func (w *wire) create(r *http.Request, body []byte) (any, error) {
	var req protocol.CreateRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	return struct{}{}, w.driver.Create(r.Context(), req.Name, req.Options)
}

func (w *wire) remove(r *http.Request, body []byte) (any, error) {
	var req protocol.RemoveRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	return struct{}{}, w.driver.Remove(r.Context(), req.Name)
}

func (w *wire) mount(r *http.Request, body []byte) (any, error) {
	var req protocol.MountRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	mountpoint, err := w.driver.Mount(r.Context(), req.Name, req.ID)
	if err != nil {
		return nil, err
	}
	return sent{protocol.MountResponse{Mountpoint: mountpoint}, func() { w.driver.Answered(req.Name, req.ID) }}, nil
}

func (w *wire) unmount(r *http.Request, body []byte) (any, error) {
	var req protocol.UnmountRequest
	if err := decode(body, &req); err != nil {
		return nil, err
	}
	w.driver.Unmount(r.Context(), req.Name, req.ID)
	return struct{}{}, nil
}

func (w *wire) get(_ *http.Request, body []byte) (any, error) {
	var req protocol.GetRequest
	if decode(body, &req) != nil {
		return nil, errHangUp
	}
	info, err := w.driver.Get(req.Name)
	if err != nil {
		return nil, err
	}
	v, err := wireVolume(info)
	if err != nil {
		w.log.Error("cannot encode a status", "volume", req.Name, "error", err)
		return nil, errHangUp
	}
	return protocol.GetResponse{Volume: v}, nil
}

func (w *wire) path(_ *http.Request, body []byte) (any, error) {
	var req protocol.PathRequest
	if decode(body, &req) != nil {
		return nil, errHangUp
	}
	mountpoint, err := w.driver.Path(req.Name)
	return protocol.PathResponse{Mountpoint: mountpoint}, err
}

// list has no body.
func (w *wire) list(*http.Request, []byte) (any, error) {
	infos := w.driver.List()
	volumes := make([]*protocol.Volume, 0, len(infos))
	for _, info := range infos {
		v, err := wireVolume(info)
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, v)
	}
	return protocol.ListResponse{Volumes: volumes}, nil
}

// capabilities has no body.
func (w *wire) capabilities(*http.Request, []byte) (any, error) {
	return protocol.CapabilitiesResponse{Capabilities: protocol.Capability{Scope: "local"}}, nil
}

// wireVolume gives a volume as the protocol has it. CreatedAt must parse as RFC 3339:
// dockerd takes a failure to decode it for the absence of the volume.
func wireVolume(info Info) (*protocol.Volume, error) {
	v := &protocol.Volume{Name: info.Name, Mountpoint: info.Mountpoint, CreatedAt: info.CreatedAt.UTC().Format(time.RFC3339)}
	if info.Status == nil {
		return v, nil
	}
	status, err := statusMap(info.Status)
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", info.Name, err)
	}
	v.Status = status
	return v, nil
}

// statusMap gives a Status as the map that the protocol wants; numbers keep all their
// digits.
func statusMap(s *contract.Status) (map[string]any, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var m map[string]any
	return m, d.Decode(&m)
}

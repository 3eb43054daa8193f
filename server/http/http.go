// Package http is the HTTP front: the API under /api/v1, health and metrics.
//
// Every answer of the API is JSON (records are NDJSON), every error is {code, message, why, fix} with a
// status that follows from the code, lists are {items, next}. The API decides nothing: it reads
// parameters, calls server/broker or the engine, and encodes.
//
//	GET    /api/v1                               what there is
//	GET    /api/v1/status                        cluster id, node, Kafka address, readiness
//	GET    /api/v1/errors                        the table of codes
//	PUT    /api/v1/modules/{name}?dry_run=&allow_break=&param.NAME=   text/plain: the module
//	GET    /api/v1/modules?limit=&after=         GET /api/v1/modules/{name}
//	POST   /api/v1/modules/{name}/stop           and /resume; also {name}/{topic}/stop for one pipeline
//	DELETE /api/v1/modules/{name}                DELETE /api/v1/modules/{name}/{topic}
//	GET    /api/v1/pipelines?limit=&after=       GET /api/v1/pipelines/{module}/{topic}
//	GET    /api/v1/topics?limit=&after=          POST /api/v1/topics {name, partitions, configs}
//	GET    /api/v1/topics/{name}                 DELETE /api/v1/topics/{name}
//	GET    /api/v1/topics/{name}/records?partition=&offset=&limit=
//	POST   /api/v1/topics/{name}/end             a time mark of +inf to every partition
//	GET    /livez   /readyz[?verbose]   /metrics
//
// A page that comes from somewhere else cannot change anything: requests of browsers that are not safe
// methods must be of the same origin, and on a loopback listener the Host must be an address or
// localhost, so that a name that was bound to it elsewhere gets nothing.
package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/server/broker"
)

// Limits of the API.
const (
	MaxModuleBytes = 1 << 20
	MaxBodyBytes   = 1 << 20 // of other requests
	DefaultPage    = 100
	MaxPage        = 1000
	MaxRecords     = 10_000 // of one records request
)

// Options of the front. Broker is required.
type Options struct {
	Broker    *broker.Broker
	Pipelines broker.Pipelines // nil: the engine does not run; its resources answer E1068
	Logger    *slog.Logger
	Metrics   nethttp.Handler // of /metrics; nil: none
	// Ready lists why the server is not ready, by part. The node's and the pipelines' reasons are added.
	Ready func() map[string][]string
	// KafkaAddr is shown in the status.
	KafkaAddr string
	Version   string
	// AnyHost accepts every Host header; without it a name must be localhost.
	AnyHost bool
}

type api struct {
	Options
	log *slog.Logger
}

// Handler returns the front.
func Handler(o Options) nethttp.Handler {
	a := &api{Options: o, log: o.Logger}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	mux := nethttp.NewServeMux()
	for pattern, h := range map[string]func(nethttp.ResponseWriter, *nethttp.Request) error{
		"GET /api/v1/{$}":                            a.index,
		"GET /api/v1":                                a.index,
		"GET /api/v1/status":                         a.status,
		"GET /api/v1/errors":                         a.errors,
		"GET /api/v1/modules":                        a.listModules,
		"PUT /api/v1/modules/{name}":                 a.putModule,
		"GET /api/v1/modules/{name}":                 a.getModule,
		"POST /api/v1/modules/{name}/stop":           a.stop,
		"POST /api/v1/modules/{name}/resume":         a.resume,
		"POST /api/v1/modules/{name}/{topic}/stop":   a.stop,
		"POST /api/v1/modules/{name}/{topic}/resume": a.resume,
		"DELETE /api/v1/modules/{name}":              a.deleteModule,
		"DELETE /api/v1/modules/{name}/{topic}":      a.deleteModule,
		"GET /api/v1/pipelines":                      a.listPipelines,
		"GET /api/v1/pipelines/{name}/{topic}":       a.getPipeline,
		"GET /api/v1/topics":                         a.listTopics,
		"POST /api/v1/topics":                        a.createTopic,
		"GET /api/v1/topics/{name}":                  a.getTopic,
		"PATCH /api/v1/topics/{name}":                a.alterTopic,
		"DELETE /api/v1/topics/{name}":               a.deleteTopic,
		"GET /api/v1/topics/{name}/records":          a.records,
		"POST /api/v1/topics/{name}/end":             a.endTopic,
		"GET /livez":                                 a.livez,
		"GET /readyz":                                a.readyz,
	} {
		mux.HandleFunc(pattern, a.wrap(h))
	}
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	origin := nethttp.NewCrossOriginProtection()
	origin.SetDenyHandler(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		writeError(w, broker.Errorf(broker.Denied, "a page of another origin sent %s %s", r.Method, clip(r.URL.Path)))
	}))
	return a.guard(origin.Handler(a.found(mux)))
}

// guard recovers from panics and refuses foreign Host names.
func (a *api) guard(next nethttp.Handler) nethttp.Handler {
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == nethttp.ErrAbortHandler { //nolint:errorlint // identity is what net/http compares
				panic(v)
			}
			a.log.Error("http.panic", "path", r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			writeError(w, broker.Errorf(broker.Internal, "the request met a bug"))
		}()
		if !a.AnyHost && !localHost(r.Host) {
			e := broker.Errorf(broker.BadRequest, "the Host %q is not this server", clip(r.Host))
			e.Fix = "Use the address that the server prints, or localhost."
			writeError(w, e)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// localHost says whether a Host header names an address or localhost.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	return host == "" || host == "localhost" || net.ParseIP(host) != nil
}

// found answers in JSON what the mux does not know.
func (a *api) found(mux *nethttp.ServeMux) nethttp.Handler {
	return nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &statusProbe{header: nethttp.Header{}}
		h.ServeHTTP(probe, r)
		if allow := probe.header.Get("Allow"); probe.status == nethttp.StatusMethodNotAllowed {
			w.Header().Set("Allow", allow)
			writeError(w, broker.Errorf(broker.WrongMethod, "%s is not possible on %s, but %s", r.Method, clip(r.URL.Path), allow))
			return
		}
		writeError(w, broker.Errorf(broker.NoSuchResource, "%s is nothing here", clip(r.URL.Path)))
	})
}

// statusProbe is a ResponseWriter that keeps the status only.
type statusProbe struct {
	header nethttp.Header
	status int
}

func (p *statusProbe) Header() nethttp.Header { return p.header }
func (p *statusProbe) WriteHeader(status int) { p.status = status }
func (p *statusProbe) Write(b []byte) (int, error) {
	if p.status == 0 {
		p.status = nethttp.StatusOK
	}
	return len(b), nil
}

// wrap turns the error of a handler into an answer. A handler that has written returns nil.
func (a *api) wrap(h func(nethttp.ResponseWriter, *nethttp.Request) error) nethttp.HandlerFunc {
	return func(w nethttp.ResponseWriter, r *nethttp.Request) {
		if err := h(w, r); err != nil {
			var compile *broker.CompileError // the writer's, not ours
			if e := broker.AsError(err); e.Code == broker.Internal && !errors.As(err, &compile) {
				a.log.Error("http.internal", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			writeError(w, err)
		}
	}
}

type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Why     string `json:"why"`
	Fix     string `json:"fix"`
	Plan    any    `json:"plan,omitempty"` // the difference that was refused
}

func writeError(w nethttp.ResponseWriter, err error) {
	var compile *broker.CompileError
	if errors.As(err, &compile) {
		writeJSON(w, broker.DoesNotCompile.Info().Status, map[string]any{"errors": compile.Errors})
		return
	}
	e := broker.AsError(err)
	message, why, fix := e.Explain()
	writeJSON(w, e.Code.Info().Status, errorBody{e.Code.String(), message, why, fix, e.Plan})
}

func writeJSON(w nethttp.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types: a bug
		status = nethttp.StatusInternalServerError
		b = []byte(`{"code":"E1069","message":"the answer cannot be encoded","why":"A bug in the server.","fix":"Report it."}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n'))
}

// page is a list's {items, next}. Next is the `after` of the next page, "" at the end.
type page struct {
	Items []any  `json:"items"`
	Next  string `json:"next"`
}

// paged cuts a list that is sorted by name by the parameters limit and after.
func paged(r *nethttp.Request, items []broker.Item) (page, error) {
	limit, err := intParam(r, "limit", DefaultPage, 1, MaxPage)
	if err != nil {
		return page{}, err
	}
	after := r.URL.Query().Get("after")
	from := 0
	if after != "" {
		from = sort.Search(len(items), func(i int) bool { return items[i].Name > after })
	}
	out := page{Items: []any{}}
	for i := from; i < len(items); i++ {
		if len(out.Items) == limit {
			out.Next = items[i-1].Name
			break
		}
		out.Items = append(out.Items, items[i].Body)
	}
	return out, nil
}

func intParam(r *nethttp.Request, name string, def, lo, hi int) (int, error) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return def, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return 0, broker.Errorf(broker.BadRequest, "%s=%s: want a number from %d to %d", name, clip(s), lo, hi)
	}
	return n, nil
}

func boolParam(r *nethttp.Request, name string) (bool, error) {
	q := r.URL.Query()
	if !q.Has(name) {
		return false, nil
	}
	switch s := q.Get(name); s {
	case "", "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	default:
		return false, broker.Errorf(broker.BadRequest, "%s=%s: want true or false", name, clip(s))
	}
}

func clip(s string) string {
	if n := 80; len(s) > n {
		for !utf8.RuneStart(s[n]) && n > 80-utf8.UTFMax {
			n--
		}
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

func (a *api) index(w nethttp.ResponseWriter, _ *nethttp.Request) error {
	writeJSON(w, nethttp.StatusOK, map[string]any{"resources": []string{
		"/api/v1/status", "/api/v1/errors", "/api/v1/modules", "/api/v1/pipelines", "/api/v1/topics",
		"/livez", "/readyz", "/metrics",
	}})
	return nil
}

func (a *api) status(w nethttp.ResponseWriter, _ *nethttp.Request) error {
	reasons := a.notReady()
	writeJSON(w, nethttp.StatusOK, map[string]any{
		"cluster_id": a.Broker.ClusterID(), "node_id": a.Broker.NodeID(), "kafka": a.KafkaAddr,
		"version": a.Version, "ready": len(flatten(reasons)) == 0, "reasons": flatten(reasons), "notes": a.notes(), "start": a.Broker.Startup(),
	})
	return nil
}

func (a *api) errors(w nethttp.ResponseWriter, _ *nethttp.Request) error {
	writeJSON(w, nethttp.StatusOK, map[string]any{"items": broker.Codes(), "next": ""})
	return nil
}

func (a *api) livez(w nethttp.ResponseWriter, _ *nethttp.Request) error {
	writeJSON(w, nethttp.StatusOK, map[string]any{"live": true})
	return nil
}

// notReady lists the reasons by part; a part without reasons is in order.
func (a *api) notReady() map[string][]string {
	out := map[string][]string{}
	if a.Ready != nil {
		for part, reasons := range a.Ready() {
			out[part] = reasons
		}
	}
	out["log"] = a.Broker.Ready()
	if a.Pipelines != nil {
		out["pipelines"] = a.Pipelines.NotReady()
	}
	return out
}

// notes lists what is wrong although the server is ready.
func (a *api) notes() []string {
	return append([]string{}, a.Broker.Notes()...)
}

func flatten(parts map[string][]string) []string {
	out := []string{}
	for part, reasons := range parts {
		for _, r := range reasons {
			out = append(out, part+": "+r)
		}
	}
	sort.Strings(out)
	return out
}

// readyz says whether the server can do its work, with reasons. With ?verbose it lists the parts.
func (a *api) readyz(w nethttp.ResponseWriter, r *nethttp.Request) error {
	parts := a.notReady()
	reasons := flatten(parts)
	body := map[string]any{"ready": len(reasons) == 0, "reasons": reasons}
	if r.URL.Query().Has("verbose") {
		checks := map[string]any{}
		for part, why := range parts {
			if why == nil {
				why = []string{}
			}
			checks[part] = map[string]any{"ok": len(why) == 0, "reasons": why}
		}
		body["checks"], body["notes"] = checks, a.notes()
	}
	status := nethttp.StatusOK
	if len(reasons) > 0 {
		status = nethttp.StatusServiceUnavailable
	}
	writeJSON(w, status, body)
	return nil
}

package http

import (
	"errors"
	"io"
	nethttp "net/http"
	"strings"
	"unicode/utf8"

	"github.com/headrace/headrace/server/broker"
)

// engine returns the engine or E1068.
func (a *api) engine() (broker.Pipelines, error) {
	if a.Pipelines == nil {
		return nil, broker.Errorf(broker.NoEngine, "the pipeline engine does not run")
	}
	return a.Pipelines, nil
}

// pathName is the module of a path, or module/topic.
func pathName(r *nethttp.Request) string {
	if topic := r.PathValue("topic"); topic != "" {
		return r.PathValue("name") + "/" + topic
	}
	return r.PathValue("name")
}

// body reads a request's body up to a limit.
func body(w nethttp.ResponseWriter, r *nethttp.Request, limit int64) ([]byte, error) {
	b, err := io.ReadAll(nethttp.MaxBytesReader(w, r.Body, limit))
	var large *nethttp.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, broker.Errorf(broker.BodyTooLarge, "the body is larger than %d bytes", limit)
	case err != nil:
		return nil, broker.Errorf(broker.BadRequest, "read the body: %w", err)
	}
	return b, nil
}

// putModule applies a module's text. Applying the same text again changes nothing.
func (a *api) putModule(w nethttp.ResponseWriter, r *nethttp.Request) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	var o broker.ApplyOptions
	if o.DryRun, err = boolParam(r, "dry_run"); err != nil {
		return err
	}
	if o.AllowBreak, err = boolParam(r, "allow_break"); err != nil {
		return err
	}
	o.File = r.URL.Query().Get("file")
	for k, v := range r.URL.Query() {
		if name, ok := strings.CutPrefix(k, "param."); ok && name != "" {
			if o.Params == nil {
				o.Params = map[string]string{}
			}
			o.Params[name] = v[0]
		}
	}
	name := r.PathValue("name")
	if err := broker.CheckTopicName(name); err != nil {
		return broker.Errorf(broker.BadRequest, "the module name %q is not allowed", clip(name))
	}
	text, err := body(w, r, MaxModuleBytes)
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return broker.Errorf(broker.BadRequest, "the module's text is not UTF-8")
	}
	result, err := e.Apply(r.Context(), name, string(text), o)
	if err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, result)
	return nil
}

func (a *api) listModules(w nethttp.ResponseWriter, r *nethttp.Request) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	p, err := paged(r, e.Modules())
	if err == nil {
		writeJSON(w, nethttp.StatusOK, p)
	}
	return err
}

func (a *api) getModule(w nethttp.ResponseWriter, r *nethttp.Request) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	m, err := e.Module(r.PathValue("name"))
	if err == nil {
		writeJSON(w, nethttp.StatusOK, m)
	}
	return err
}

// change runs one change of a module or pipeline and answers its name.
func (a *api) change(w nethttp.ResponseWriter, r *nethttp.Request, done string, f func(e broker.Pipelines, name string) error) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	name := pathName(r)
	if err := f(e, name); err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, map[string]any{"name": name, "state": done})
	return nil
}

func (a *api) stop(w nethttp.ResponseWriter, r *nethttp.Request) error {
	return a.change(w, r, "stopped", func(e broker.Pipelines, name string) error { return e.Stop(r.Context(), name) })
}

func (a *api) resume(w nethttp.ResponseWriter, r *nethttp.Request) error {
	return a.change(w, r, "running", func(e broker.Pipelines, name string) error { return e.Resume(r.Context(), name) })
}

func (a *api) deleteModule(w nethttp.ResponseWriter, r *nethttp.Request) error {
	return a.change(w, r, "deleted", func(e broker.Pipelines, name string) error { return e.Delete(r.Context(), name) })
}

func (a *api) listPipelines(w nethttp.ResponseWriter, r *nethttp.Request) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	p, err := paged(r, e.Pipelines())
	if err == nil {
		writeJSON(w, nethttp.StatusOK, p)
	}
	return err
}

func (a *api) getPipeline(w nethttp.ResponseWriter, r *nethttp.Request) error {
	e, err := a.engine()
	if err != nil {
		return err
	}
	p, err := e.Pipeline(pathName(r))
	if err == nil {
		writeJSON(w, nethttp.StatusOK, p)
	}
	return err
}

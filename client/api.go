// Package client is the Go client of a Headrace server: modules, pipelines and topics over the HTTP API,
// and record streams over the Kafka protocol.
//
// A Producer sends records: to one topic each through its Writers, idempotent, with a callback when a record is durable
// and without work for it beyond a copy. A Publisher sends to one topic with it and keeps account. An API manages topics and
// modules; ReadRange and ReadAll read.
//
// It links no server code. Everything here may be used by several goroutines at once.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An API talks to the HTTP front of a server.
type API struct {
	base string
	http *http.Client
	slow time.Duration // of Slow; 0: not asked for
	say  func(request string, waits time.Duration)
}

// NewAPI makes a client of the front at address: "host:port" or "http://host:port". It connects when
// it is first used.
func NewAPI(address string) *API {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
	}
	return &API{base: strings.TrimRight(address, "/"), http: &http.Client{Transport: t, Timeout: 5 * time.Minute}}
}

// dialTimeout is how long a server may take to accept a connection.
const dialTimeout = 3 * time.Second

// Slow has say called, from a goroutine of its own, for every request that is not answered after so long. It comes before
// the first request.
func (a *API) Slow(after time.Duration, say func(request string, waits time.Duration)) {
	a.slow, a.say = after, say
}

// Address is the URL of the front.
func (a *API) Address() string { return a.base }

// An Error is a refusal of the server.
type Error struct {
	Status  int          `json:"-"` // HTTP status
	Code    string       `json:"code"`
	Message string       `json:"message"`
	Why     string       `json:"why"`
	Fix     string       `json:"fix"`
	Errors  []Diagnostic `json:"errors"` // of a module that does not compile
	// Plan is the difference that was refused, if the refusal was of one.
	Plan []PlanChange `json:"plan"`
}

func (e *Error) Error() string {
	if e.Code == "" && len(e.Errors) > 0 {
		return e.Errors[0].Code + " " + e.Errors[0].Message
	}
	return e.Code + " " + e.Message
}

// A ConnectError says that the server was not reached.
type ConnectError struct {
	Address string
	Err     error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("reach the server at %s: %v", e.Address, e.Err)
}
func (e *ConnectError) Unwrap() error { return e.Err }

// A Diagnostic is one finding of the compiler.
type Diagnostic struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	File    string `json:"file"`
	Line    int    `json:"line"`   // 1-based
	Column  int    `json:"column"` // 1-based, in runes
	Length  int    `json:"length"`
	Reason  string `json:"reason,omitempty"`
	Fix     string `json:"fix,omitempty"`
	Source  string `json:"source,omitempty"`
}

// A PlanChange says what applying a module does to one pipeline: same, extend, rebuild or break.
type PlanChange struct {
	Pipeline string `json:"pipeline"`
	Change   string `json:"change"`
	Why      string `json:"why"`
}

// An ApplyResult is the answer to Apply.
type ApplyResult struct {
	Name     string       `json:"name"`
	Version  int64        `json:"version"`
	Plan     []PlanChange `json:"plan"`
	Warnings []Diagnostic `json:"warnings"`
}

// A Module is an applied .hr file.
type Module struct {
	Name      string     `json:"name"`
	Version   int64      `json:"version"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	AppliedAt time.Time  `json:"applied_at"`
	Text      string     `json:"text,omitempty"`
	Pipelines []Pipeline `json:"pipelines"`
	Views     []View     `json:"views"`
}

// A View is a pipeline that is evaluated while delivering.
type View struct {
	Name       string `json:"name"`
	Source     string `json:"source"`
	Partitions int    `json:"partitions"`
	Failed     int64  `json:"failed"`
	LastError  string `json:"last_error,omitempty"`
}

// A Pipeline is one derived topic being made.
type Pipeline struct {
	Name       string              `json:"name"` // module/topic
	Module     string              `json:"module"`
	Topic      string              `json:"topic"`
	Source     string              `json:"source"`
	State      string              `json:"state"`
	Reason     string              `json:"reason,omitempty"`
	Version    string              `json:"version"`
	Since      time.Time           `json:"since"`
	Watermark  string              `json:"watermark"` // RFC 3339, -inf or +inf
	HeldBy     int32               `json:"held_by"`   // source partition, -1: none
	Lag        int64               `json:"lag"`       // source records not yet part of a step
	Partitions []PipelinePartition `json:"partitions"`
	Counters   Counters            `json:"counters"`
	StateBytes int64               `json:"state_bytes"`
	StateRows  int64               `json:"state_rows"`
	Step       uint64              `json:"step"`
}

// A PipelinePartition is how far a pipeline has read one source partition.
type PipelinePartition struct {
	Partition int32  `json:"partition"`
	Next      int64  `json:"next"`
	End       int64  `json:"end"`
	Watermark string `json:"watermark"`
}

// Counters account for every row that a pipeline has taken.
type Counters struct {
	In        int64 `json:"in"`        // rows read from the source
	Invalid   int64 `json:"invalid"`   // failed before the first stage
	Late      int64 `json:"late"`      // given up by a stage that had closed
	Failed    int64 `json:"failed"`    // failed in a stage, or when they were written
	Unwritten int64 `json:"unwritten"` // of these: failed when they were written
	Out       int64 `json:"out"`       // rows written to the derived topic
	Held      int64 `json:"held"`      // rows that wait for the watermark before they are written
	Skipped   int64 `json:"skipped"`   // offsets of the source that were gone before they were read

	Stages []StageCounters `json:"stages"`
}

// StageCounters account for one stage.
type StageCounters struct {
	Stage    string `json:"stage"`
	In       int64  `json:"in"`
	Out      int64  `json:"out"`
	Filtered int64  `json:"filtered"`
	Late     int64  `json:"late"`
	Failed   int64  `json:"failed"`
	Folded   int64  `json:"folded"`         // rows that went into groups
	Lost     int64  `json:"lost"`           // groups whose result failed
	Held     int64  `json:"held,omitempty"` // rows that wait for the watermark
}

// A Topic is a topic, a derived topic or a view.
type Topic struct {
	Name       string          `json:"name"`
	Kind       string          `json:"kind"`
	ID         string          `json:"id"`
	Partitions int32           `json:"partitions"`
	Owner      string          `json:"owner,omitempty"`
	Source     string          `json:"source,omitempty"`
	Readers    []string        `json:"readers,omitempty"`
	Ready      bool            `json:"ready"`
	CreatedAt  string          `json:"created_at,omitempty"`
	Configs    []Config        `json:"configs,omitempty"`
	Schema     json.RawMessage `json:"schema,omitempty"`
	Ranges     []Range         `json:"ranges,omitempty"`
	Records    *int64          `json:"records,omitempty"`
}

// A Config is one setting of a topic.
type Config struct {
	Name         string `json:"name"`
	Value        string `json:"value"`
	Source       string `json:"source,omitempty"` // default, topic
	DefaultValue string `json:"default_value"`
	Honoured     bool   `json:"honoured"` // false: kept and shown, without effect
}

// A Range is the offsets that a partition holds: [LogStart, LogEnd).
type Range struct {
	Partition int32 `json:"partition"`
	LogStart  int64 `json:"log_start"`
	LogEnd    int64 `json:"log_end"`
	Bytes     int64 `json:"bytes"` // of record batches, about
}

// A Status is what a server says of itself.
type Status struct {
	ClusterID string   `json:"cluster_id"`
	NodeID    int32    `json:"node_id"`
	Kafka     string   `json:"kafka"`
	Version   string   `json:"version"`
	Ready     bool     `json:"ready"`
	Reasons   []string `json:"reasons"` // why it is not ready
	Notes     []string `json:"notes"`   // what is wrong with what it stores, although it is ready
}

// send sends a request and waits for the head of its answer.
func (a *API) send(req *http.Request) (*http.Response, error) {
	if a.slow > 0 {
		t := time.AfterFunc(a.slow, func() { a.say(req.Method+" "+req.URL.Path, a.slow) })
		defer t.Stop()
	}
	return a.http.Do(req)
}

// maxAnswer bounds what is read of one answer.
const maxAnswer = 64 << 20

func (a *API) do(ctx context.Context, method, path string, body io.Reader, contentType string, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := a.send(req)
	if err != nil {
		return a.failed(method, path, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return a.failed(method, path, err)
	}
	if resp.StatusCode >= 300 {
		e := &Error{Status: resp.StatusCode}
		if json.Unmarshal(raw, e) != nil || (e.Code == "" && len(e.Errors) == 0) {
			e.Code, e.Message = "E2000", fmt.Sprintf("%s %s answers %s, which is no Headrace answer", method, a.base+path, resp.Status)
			e.Why, e.Fix = "Something else listens at this address.", "Check --http."
		}
		return e
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("client: answer of %s %s: %w", method, path, err)
	}
	return nil
}

// failed is a request without an answer: the caller gave up, or the server was not reached.
func (a *API) failed(method, path string, err error) error {
	var op *net.OpError
	var timeout interface{ Timeout() bool }
	if where := (*url.Error)(nil); errors.As(err, &where) {
		err = where.Err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("client: %s %s: %w", method, path, context.Canceled)
	case errors.As(err, &op):
		return &ConnectError{a.base, op.Err} // without the address, which stands before it
	case errors.As(err, &timeout) && timeout.Timeout():
		return &ConnectError{a.base, err}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &ConnectError{a.base, errors.New("the connection was closed without an answer")}
	}
	return fmt.Errorf("client: %s %s: %w", method, path, err)
}

// list collects all pages of a list.
func list[T any](ctx context.Context, a *API, path string) ([]T, error) {
	out := []T{}
	for after := ""; ; {
		var page struct {
			Items []T    `json:"items"`
			Next  string `json:"next"`
		}
		q := url.Values{"limit": {"1000"}}
		if after != "" {
			q.Set("after", after)
		}
		if err := a.do(ctx, http.MethodGet, path+"?"+q.Encode(), nil, "", &page); err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if page.Next == "" || page.Next == after {
			return out, nil
		}
		after = page.Next
	}
}

// escapeName escapes a name, or module/topic, for a path.
func escapeName(name string) string {
	parts := strings.SplitN(name, "/", 2)
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// Status asks the server what it is.
func (a *API) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, a.do(ctx, http.MethodGet, "/api/v1/status", nil, "", &s)
}

// ApplyOptions of Apply.
type ApplyOptions struct {
	DryRun     bool
	AllowBreak bool
	Params     map[string]string
	File       string // shown in diagnostics
}

// Apply brings a module to the given text. Errors are *Error with Errors set for a text that does not
// compile.
func (a *API) Apply(ctx context.Context, name, text string, o ApplyOptions) (*ApplyResult, error) {
	q := url.Values{}
	if o.DryRun {
		q.Set("dry_run", "true")
	}
	if o.AllowBreak {
		q.Set("allow_break", "true")
	}
	if o.File != "" {
		q.Set("file", o.File)
	}
	for k, v := range o.Params {
		q.Set("param."+k, v)
	}
	var r ApplyResult
	err := a.do(ctx, http.MethodPut, "/api/v1/modules/"+url.PathEscape(name)+"?"+q.Encode(), strings.NewReader(text), "text/plain; charset=utf-8", &r)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Modules lists the modules.
func (a *API) Modules(ctx context.Context) ([]Module, error) {
	return list[Module](ctx, a, "/api/v1/modules")
}

// Module describes one module with its text.
func (a *API) Module(ctx context.Context, name string) (Module, error) {
	var m Module
	return m, a.do(ctx, http.MethodGet, "/api/v1/modules/"+url.PathEscape(name), nil, "", &m)
}

// Stop ends a module's pipelines, or one pipeline module/topic, and keeps their progress.
func (a *API) Stop(ctx context.Context, name string) error {
	return a.do(ctx, http.MethodPost, "/api/v1/modules/"+escapeName(name)+"/stop", nil, "", nil)
}

// Resume lets stopped or paused pipelines go on.
func (a *API) Resume(ctx context.Context, name string) error {
	return a.do(ctx, http.MethodPost, "/api/v1/modules/"+escapeName(name)+"/resume", nil, "", nil)
}

// Delete ends a module, or one pipeline, and deletes what it derived.
func (a *API) Delete(ctx context.Context, name string) error {
	return a.do(ctx, http.MethodDelete, "/api/v1/modules/"+escapeName(name), nil, "", nil)
}

// Pipelines lists the pipelines of all modules.
func (a *API) Pipelines(ctx context.Context) ([]Pipeline, error) {
	return list[Pipeline](ctx, a, "/api/v1/pipelines")
}

// Pipeline describes one pipeline, module/topic.
func (a *API) Pipeline(ctx context.Context, name string) (Pipeline, error) {
	var p Pipeline
	return p, a.do(ctx, http.MethodGet, "/api/v1/pipelines/"+escapeName(name), nil, "", &p)
}

// Topics lists topics, derived topics and views.
func (a *API) Topics(ctx context.Context) ([]Topic, error) {
	return list[Topic](ctx, a, "/api/v1/topics")
}

// Topic describes one topic with its offsets and settings.
func (a *API) Topic(ctx context.Context, name string) (Topic, error) {
	var t Topic
	return t, a.do(ctx, http.MethodGet, "/api/v1/topics/"+url.PathEscape(name), nil, "", &t)
}

// A TopicSpec describes a topic to create.
type TopicSpec struct {
	Name       string            `json:"name"`
	Partitions int32             `json:"partitions"` // 0: the server's default
	Configs    map[string]string `json:"configs,omitempty"`
	DryRun     bool              `json:"dry_run,omitempty"`
}

// CreateTopic creates a topic and answers when it can be written.
func (a *API) CreateTopic(ctx context.Context, s TopicSpec) (Topic, error) {
	body, err := json.Marshal(s)
	if err != nil {
		return Topic{}, fmt.Errorf("client: %w", err)
	}
	var t Topic
	return t, a.do(ctx, http.MethodPost, "/api/v1/topics", bytes.NewReader(body), "application/json", &t)
}

// A TopicChange changes settings of a topic; those in Unset are the default again.
type TopicChange struct {
	Set    map[string]string `json:"set,omitempty"`
	Unset  []string          `json:"unset,omitempty"`
	DryRun bool              `json:"dry_run,omitempty"`
}

// A TopicAlteration says what a TopicChange does.
type TopicAlteration struct {
	Name    string          `json:"name"`
	DryRun  bool            `json:"dry_run,omitempty"`
	Changed []ChangedConfig `json:"changed"`
	// Deletes is about what retention deletes under the new settings.
	Deletes struct {
		Records int64 `json:"records"`
		Bytes   int64 `json:"bytes"`
		Held    int64 `json:"held"` // records that would go too if no consumer needed them
	} `json:"deletes"`
}

// A ChangedConfig is one setting before and after.
type ChangedConfig struct {
	Name    string `json:"name"`
	Before  string `json:"before"`
	After   string `json:"after"`
	Default bool   `json:"default"` // After is the default
}

// AlterTopic changes settings of a topic and answers when they are in force.
func (a *API) AlterTopic(ctx context.Context, name string, c TopicChange) (TopicAlteration, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return TopicAlteration{}, fmt.Errorf("client: %w", err)
	}
	var out TopicAlteration
	return out, a.do(ctx, http.MethodPatch, "/api/v1/topics/"+url.PathEscape(name), bytes.NewReader(body), "application/json", &out)
}

// DeleteTopic deletes a topic with its records.
func (a *API) DeleteTopic(ctx context.Context, name string) error {
	return a.do(ctx, http.MethodDelete, "/api/v1/topics/"+url.PathEscape(name), nil, "", nil)
}

// EndTopic declares the end of a topic's event time: windows close, and later rows are late.
func (a *API) EndTopic(ctx context.Context, name string) error {
	return a.do(ctx, http.MethodPost, "/api/v1/topics/"+url.PathEscape(name)+"/end", nil, "", nil)
}

// Records reads up to limit records of one partition as NDJSON lines, from an offset, "earliest",
// "latest" or "-N".
func (a *API) Records(ctx context.Context, topic string, partition int32, offset string, limit int) ([]json.RawMessage, error) {
	q := url.Values{"partition": {strconv.Itoa(int(partition))}, "offset": {offset}, "limit": {strconv.Itoa(limit)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+"/api/v1/topics/"+url.PathEscape(topic)+"/records?"+q.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	resp, err := a.send(req)
	if err != nil {
		return nil, a.failed(http.MethodGet, "/api/v1/topics/"+topic+"/records", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		e := &Error{Status: resp.StatusCode}
		if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(e); err != nil {
			return nil, fmt.Errorf("client: records of %s: %s", topic, resp.Status)
		}
		return nil, e
	}
	var out []json.RawMessage
	for d := json.NewDecoder(resp.Body); ; {
		var line json.RawMessage
		switch err := d.Decode(&line); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("client: records of %s: %w", topic, err)
		}
		out = append(out, line)
	}
}

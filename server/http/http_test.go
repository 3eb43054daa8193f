package http_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server/broker"
	"github.com/headrace/headrace/server/http"
)

// fakeEngine answers as the engine would.
type fakeEngine struct {
	applied  map[string]string
	notReady []string
	last     broker.ApplyOptions
}

func (e *fakeEngine) View(string) (broker.SourcedView, bool) { return nil, false }
func (e *fakeEngine) Views() []broker.SourcedView            { return nil }
func (e *fakeEngine) Readers(topic string) []string {
	if topic == "clicks" {
		return []string{"m/hot"}
	}
	return nil
}
func (e *fakeEngine) Stats() []broker.PipelineStats { return nil }
func (e *fakeEngine) NotReady() []string            { return e.notReady }

func (e *fakeEngine) Apply(_ context.Context, name, text string, o broker.ApplyOptions) (any, error) {
	e.last = o
	switch {
	case strings.Contains(text, "boom"):
		panic("a bug")
	case strings.Contains(text, "usr"):
		return nil, &broker.CompileError{Errors: []plan.Diagnostic{{Code: "E0104", Message: "topic clicks has no field `usr`", File: "m.hr", Line: 3, Column: 12, Length: 3, Fix: "`user`"}}}
	case strings.Contains(text, "break"):
		return nil, &broker.Error{Code: broker.Conflict, Message: "the change breaks readers", Plan: []string{"m/hot"}}
	}
	e.applied[name] = text
	return map[string]any{"name": name, "version": 1, "plan": []any{}, "warnings": []any{}}, nil
}

func (e *fakeEngine) Modules() []broker.Item {
	var out []broker.Item
	for name := range e.applied {
		out = append(out, broker.Item{Name: name, Body: map[string]any{"name": name}})
	}
	slices.SortFunc(out, func(a, b broker.Item) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (e *fakeEngine) Module(name string) (any, error) {
	if text, ok := e.applied[name]; ok {
		return map[string]any{"name": name, "text": text}, nil
	}
	return nil, broker.Errorf(broker.UnknownModule, "module %q does not exist", name)
}

func (e *fakeEngine) Stop(_ context.Context, name string) error {
	_, err := e.Module(strings.Split(name, "/")[0])
	return err
}
func (e *fakeEngine) Resume(ctx context.Context, name string) error { return e.Stop(ctx, name) }
func (e *fakeEngine) Delete(ctx context.Context, name string) error {
	if err := e.Stop(ctx, name); err != nil {
		return err
	}
	delete(e.applied, name)
	return nil
}

func (e *fakeEngine) Pipelines() []broker.Item {
	return []broker.Item{{Name: "m/hot", Body: map[string]any{"name": "m/hot", "lag": 0}}}
}

func (e *fakeEngine) Pipeline(name string) (any, error) {
	if name == "m/hot" {
		return map[string]any{"name": name}, nil
	}
	return nil, broker.Errorf(broker.UnknownPipeline, "pipeline %q does not exist", name)
}

type web struct {
	t      *testing.T
	url    string
	broker *broker.Broker
	node   *replication.Node
	engine *fakeEngine
}

func start(t *testing.T, change func(*http.Options)) *web {
	t.Helper()
	node, err := replication.OpenNode(replication.NodeOptions{
		Dir: "/data", FS: fsx.NewMem(), Data: replication.ShardOptions{WALSegmentBytes: 8 << 20}, Meta: replication.ShardOptions{WALSegmentBytes: 4 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &web{t: t, node: node, engine: &fakeEngine{applied: map[string]string{}}}
	w.broker = broker.New(broker.Options{Node: node, Pipelines: w.engine})
	o := http.Options{Broker: w.broker, Pipelines: w.engine, KafkaAddr: "127.0.0.1:9092", Version: "test"}
	if change != nil {
		change(&o)
	}
	s := httptest.NewServer(http.Handler(o))
	w.url = s.URL
	t.Cleanup(func() {
		s.Close()
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// do sends a request and returns status, headers and body.
func (w *web) do(method, path, body string, headers ...string) (int, nethttp.Header, string) {
	w.t.Helper()
	req, err := nethttp.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := nethttp.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range resp.Trailer {
		resp.Header[k] = v
	}
	return resp.StatusCode, resp.Header, string(b)
}

// get decodes a JSON answer.
func (w *web) json(method, path, body string, want int) map[string]any {
	w.t.Helper()
	status, _, text := w.do(method, path, body)
	if status != want {
		w.t.Fatalf("%s %s: %d, want %d: %s", method, path, status, want, text)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		w.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
	return m
}

func TestEveryErrorHasCodeMessageWhyAndFix(t *testing.T) {
	var logged bytes.Buffer
	w := start(t, func(o *http.Options) { o.Logger = slog.New(slog.NewTextHandler(&logged, nil)) })
	big := strings.Repeat("x", 2<<20)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", "/api/v1/nothing", "", 404, "E1062"},
		{"GET", "/", "", 404, "E1062"},
		{"PATCH", "/api/v1/topics", "", 405, "E1063"},
		{"GET", "/api/v1/topics/nobody", "", 404, "E1001"},
		{"DELETE", "/api/v1/topics/nobody", "", 404, "E1001"},
		{"POST", "/api/v1/topics", "{", 400, "E1060"},
		{"POST", "/api/v1/topics", `{"name":"a","nonsense":1}`, 400, "E1060"},
		{"POST", "/api/v1/topics", `{"name":"../x"}`, 400, "E1004"},
		{"POST", "/api/v1/topics", `{"name":"a","partitions":-3}`, 400, "E1006"},
		{"POST", "/api/v1/topics", `{"name":"a","configs":{"x":"y"}}`, 400, "E1005"},
		{"POST", "/api/v1/topics", big, 413, "E1061"},
		{"PATCH", "/api/v1/topics/nobody", `{"set":{"retention.ms":"1"}}`, 404, "E1001"},
		{"PATCH", "/api/v1/topics/nobody", `[]`, 400, "E1060"},
		{"PATCH", "/api/v1/topics/nobody", `{"nonsense":1}`, 400, "E1060"},
		{"PATCH", "/api/v1/topics/nobody", big, 413, "E1061"},
		{"GET", "/api/v1/topics?limit=0", "", 400, "E1060"},
		{"GET", "/api/v1/topics?limit=5000", "", 400, "E1060"},
		{"PUT", "/api/v1/modules/a%20b", "x", 400, "E1060"},
		{"PUT", "/api/v1/modules/m?dry_run=maybe", "x", 400, "E1060"},
		{"PUT", "/api/v1/modules/m", "\xff", 400, "E1060"},
		{"PUT", "/api/v1/modules/m", big, 413, "E1061"},
		{"PUT", "/api/v1/modules/m", "break", 409, "E1066"},
		{"PUT", "/api/v1/modules/m", "boom", 500, "E1069"},
		{"GET", "/api/v1/modules/nobody", "", 404, "E1064"},
		{"POST", "/api/v1/modules/nobody/stop", "", 404, "E1064"},
		{"DELETE", "/api/v1/modules/nobody/x", "", 404, "E1064"},
		{"GET", "/api/v1/pipelines/m/nobody", "", 404, "E1065"},
		{"POST", "/api/v1/topics/nobody/end", "", 404, "E1001"},
	} {
		m := w.json(c.method, c.path, c.body, c.status)
		if m["code"] != c.code || m["message"] == "" || m["why"] == "" || m["fix"] == "" {
			t.Errorf("%s %s: %v, want %s", c.method, c.path, m, c.code)
		}
	}
	logged.Reset()
	status, _, text := w.do("PUT", "/api/v1/modules/m", "where usr == 1")
	if logged.Len() > 0 { // it is the writer's error, not the server's
		t.Errorf("a text that does not compile is logged: %s", &logged)
	}
	var body struct{ Errors []plan.Diagnostic }
	if err := json.Unmarshal([]byte(text), &body); status != 422 || err != nil || len(body.Errors) != 1 || body.Errors[0].Line != 3 {
		t.Errorf("%d %s", status, text)
	}
	if m := w.json("PUT", "/api/v1/modules/m", "break", 409); fmt.Sprint(m["plan"]) != "[m/hot]" {
		t.Errorf("a refused change without its plan: %v", m)
	}
}

func TestModulesAndPipelines(t *testing.T) {
	w := start(t, nil)
	m := w.json("PUT", "/api/v1/modules/m?dry_run&param.threshold=5&file=x.hr", "text", 200)
	if m["name"] != "m" || !w.engine.last.DryRun || w.engine.last.AllowBreak || w.engine.last.Params["threshold"] != "5" || w.engine.last.File != "x.hr" {
		t.Errorf("%v %+v", m, w.engine.last)
	}
	for i := range 5 {
		w.json("PUT", fmt.Sprintf("/api/v1/modules/m%d", i), "text", 200)
	}
	var names []string
	for after := ""; ; {
		p := w.json("GET", "/api/v1/modules?limit=2&after="+after, "", 200)
		for _, it := range p["items"].([]any) {
			names = append(names, it.(map[string]any)["name"].(string))
		}
		if after = p["next"].(string); after == "" {
			break
		}
	}
	if fmt.Sprint(names) != "[m m0 m1 m2 m3 m4]" {
		t.Errorf("pages: %v", names)
	}
	w.json("POST", "/api/v1/modules/m/stop", "", 200)
	w.json("POST", "/api/v1/modules/m/hot/resume", "", 200)
	w.json("DELETE", "/api/v1/modules/m", "", 200)
	w.json("GET", "/api/v1/modules/m", "", 404)
	w.json("GET", "/api/v1/pipelines", "", 200)
	w.json("GET", "/api/v1/pipelines/m/hot", "", 200)

	none := start(t, func(o *http.Options) { o.Pipelines = nil })
	if m := none.json("GET", "/api/v1/modules", "", 503); m["code"] != "E1068" {
		t.Errorf("without an engine: %v", m)
	}
}

// lines decodes NDJSON.
func lines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, s.Text())
		}
		out = append(out, m)
	}
	return out
}

func TestTopicsAndRecords(t *testing.T) {
	w := start(t, nil)
	made := w.json("POST", "/api/v1/topics", `{"name":"clicks","partitions":2,"configs":{"retention.ms":"1000000"}}`, 201)
	if made["kind"] != "topic" || made["partitions"] != 2.0 || made["ready"] != true {
		t.Errorf("created: %v", made)
	}
	w.json("POST", "/api/v1/topics", `{"name":"clicks"}`, 409)
	w.json("POST", "/api/v1/topics", `{"name":"later","dry_run":true}`, 200)

	topic, _ := w.broker.Topic("clicks")
	send := func(ts int64, key, value []byte, headers ...record.KV) {
		b := record.NewBuilder()
		b.Append(ts, key, value, headers)
		done := make(chan broker.Appended, 1)
		if err := w.broker.Append(t.Context(), topic, 1, b.Finish(), false, func(a broker.Appended) { done <- a }); err != nil {
			t.Fatal(err)
		}
		if a := <-done; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	send(1_700_000_000_123, []byte("k"), []byte(`{"user": "ann",`+"\n"+` "n": 1}`), record.KV{Key: "h", Value: []byte("x")})
	send(0, nil, []byte("plain <text>"))
	send(0, []byte{0xff, 0}, nil)
	send(0, []byte(""), []byte("42"))

	status, head, text := w.do("GET", "/api/v1/topics/clicks/records?partition=1", "")
	got := lines(t, text)
	if status != 200 || len(got) != 4 || head.Get("Content-Type") != "application/x-ndjson" || head.Get("Headrace-Next-Offset") != "4" {
		t.Fatalf("%d %v %s", status, head, text)
	}
	if got[0]["timestamp"] != "2023-11-14T22:13:20.123Z" || got[0]["value"].(map[string]any)["user"] != "ann" || got[0]["key"] != "k" ||
		fmt.Sprint(got[0]["headers"]) != "[map[key:h value:x]]" {
		t.Errorf("%v", got[0])
	}
	if got[1]["key"] != nil || got[1]["value"] != "plain <text>" || got[2]["key_base64"] != "/wA=" || got[2]["value"] != nil || got[3]["key"] != "" || got[3]["value"] != "42" {
		t.Errorf("%v", got[1:])
	}
	for query, want := range map[string]string{
		"offset=2": "[2 3]", "offset=-1": "[3]", "offset=-100": "[0 1 2 3]", "offset=latest": "[]", "offset=1&limit=2": "[1 2]", "offset=earliest&limit=1": "[0]",
	} {
		_, _, text := w.do("GET", "/api/v1/topics/clicks/records?partition=1&"+query, "")
		offsets := []float64{}
		for _, l := range lines(t, text) {
			offsets = append(offsets, l["offset"].(float64))
		}
		if fmt.Sprint(offsets) != want {
			t.Errorf("%s: %v, want %s", query, offsets, want)
		}
	}
	for query, code := range map[string]string{"partition=2": "E1002", "partition=x": "E1060", "offset=9": "E1011", "offset=soon": "E1060"} {
		if !strings.Contains(query, "partition") {
			query += "&partition=1"
		}
		status, _, text := w.do("GET", "/api/v1/topics/clicks/records?"+query, "")
		if !strings.Contains(text, code) || status < 400 {
			t.Errorf("%s: %d %s, want %s", query, status, text, code)
		}
	}

	// The end of event time is a time mark of +inf in every partition; it is no record.
	if m := w.json("POST", "/api/v1/topics/clicks/end", "", 200); m["watermark"] != "+inf" {
		t.Errorf("%v", m)
	}
	for p := range int32(2) {
		part := w.broker.StorePartition(topic.ID, p)
		bs, err := part.Read(part.LogEnd()-1, 1<<20, nil)
		if err != nil || len(bs) != 1 {
			t.Fatal(bs, err)
		}
		if mark, ok := record.ParseTimeMark(bs[0].Data); !ok || mark != 1<<63-1 {
			t.Errorf("partition %d ends with %d %v", p, mark, ok)
		}
	}
	_, head, text = w.do("GET", "/api/v1/topics/clicks/records?partition=1&offset=4", "")
	if text != "" || head.Get("Headrace-Next-Offset") != "5" {
		t.Errorf("%q next %s", text, head.Get("Headrace-Next-Offset"))
	}

	one := w.json("GET", "/api/v1/topics/clicks", "", 200)
	if fmt.Sprint(one["ranges"]) != "[map[bytes:80 log_end:1 log_start:0 partition:0] map[bytes:397 log_end:5 log_start:0 partition:1]]" || fmt.Sprint(one["readers"]) != "[m/hot]" {
		t.Errorf("%v", one)
	}
	if m := w.json("DELETE", "/api/v1/topics/clicks", "", 409); m["code"] != "E1010" {
		t.Errorf("a topic that is read was deleted: %v", m)
	}
	w.json("POST", "/api/v1/topics", `{"name":"gone"}`, 201)
	w.json("DELETE", "/api/v1/topics/gone", "", 200)
	w.json("GET", "/api/v1/topics/gone", "", 404)
	list := w.json("GET", "/api/v1/topics", "", 200)
	if len(list["items"].([]any)) != 1 || list["next"] != "" {
		t.Errorf("%v", list)
	}
}

func TestHealthSaysWhy(t *testing.T) {
	w := start(t, nil)
	w.json("GET", "/livez", "", 200)
	w.json("GET", "/readyz", "", 200)
	w.engine.notReady = []string{"pipeline m/hot is being restored"}
	m := w.json("GET", "/readyz?verbose", "", 503)
	if fmt.Sprint(m["reasons"]) != "[pipelines: pipeline m/hot is being restored]" {
		t.Errorf("%v", m)
	}
	if c := m["checks"].(map[string]any)["log"].(map[string]any); c["ok"] != true {
		t.Errorf("%v", m)
	}
	if s := w.json("GET", "/api/v1/status", "", 200); s["ready"] != false || s["kafka"] != "127.0.0.1:9092" || s["version"] != "test" {
		t.Errorf("%v", s)
	}
	if e := w.json("GET", "/api/v1/errors", "", 200); len(e["items"].([]any)) < 30 {
		t.Errorf("%v", e)
	}
}

func TestPagesFromElsewhereChangeNothing(t *testing.T) {
	w := start(t, nil)
	status, _, body := w.do("POST", "/api/v1/topics", `{"name":"evil"}`, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	if status != 403 || !strings.Contains(body, "E1070") {
		t.Errorf("a cross-site POST: %d %s", status, body)
	}
	status, _, body = w.do("GET", "/api/v1/topics", "", "Host", "rebound.example")
	if status != 400 || !strings.Contains(body, "E1060") {
		t.Errorf("a foreign Host: %d %s", status, body)
	}
	if status, _, _ = w.do("GET", "/api/v1/topics", "", "Host", "localhost:1234"); status != 200 {
		t.Errorf("localhost: %d", status)
	}
	any := start(t, func(o *http.Options) { o.AnyHost = true })
	if status, _, _ = any.do("GET", "/api/v1/topics", "", "Host", "broker.example"); status != 200 {
		t.Errorf("with AnyHost: %d", status)
	}
}

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func answering(t *testing.T, h http.HandlerFunc) *API {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return NewAPI(s.Listener.Addr().String())
}

func TestListsAreReadPageByPage(t *testing.T) {
	pages := map[string]string{
		"":  `{"items":[{"name":"a"},{"name":"b"}],"next":"b"}`,
		"b": `{"items":[{"name":"c"}],"next":""}`,
	}
	api := answering(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, pages[r.URL.Query().Get("after")])
	})
	topics, err := api.Topics(t.Context())
	if err != nil || len(topics) != 3 || topics[2].Name != "c" {
		t.Errorf("got %v, %v", topics, err)
	}
}

func TestRefusalsKeepTheServersWords(t *testing.T) {
	api := answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"code":"E1001","message":"topic \"x\" does not exist","why":"w","fix":"f"}`)
	})
	_, err := api.Topic(t.Context(), "x")
	var refused *Error
	if !errors.As(err, &refused) || refused.Status != 404 || refused.Code != "E1001" || refused.Why != "w" || refused.Fix != "f" {
		t.Errorf("got %#v", err)
	}
	if _, err = api.Records(t.Context(), "x", 0, "earliest", 1); !errors.As(err, &refused) || refused.Code != "E1001" {
		t.Errorf("records: got %v", err)
	}
}

func TestAnAnswerThatIsLateIsAnnounced(t *testing.T) {
	said := make(chan string, 1)
	api := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":%q}`, <-said)
	})
	api.Slow(time.Millisecond, func(request string, waits time.Duration) { said <- fmt.Sprint(request, " ", waits) })
	if s, err := api.Status(t.Context()); err != nil || s.Version != "GET /api/v1/status 1ms" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestRefusalsOverKafkaKeepTheServersWords(t *testing.T) {
	for words, want := range map[string]WireError{
		"E1017 no key. Give one.": {Code: "E1017", Message: "no key. Give one."},
		"Eager words":             {Message: "Eager words"},
		"E10x7 words":             {Message: "E10x7 words"},
		"E1017":                   {Message: "E1017"},
	} {
		var got *WireError
		err := wireError(kerr.InvalidRecord.Code, &words)
		if !errors.As(err, &got) || got.Code != want.Code || got.Message != want.Message || !errors.Is(err, kerr.InvalidRecord) {
			t.Errorf("%q: %#v", words, err)
		}
	}
	if err := wireError(kerr.InvalidRecord.Code, nil); err != kerr.InvalidRecord { //nolint:errorlint // itself
		t.Errorf("without words: %#v", err)
	}
	if err := wireError(0, nil); err != nil {
		t.Errorf("no error: %v", err)
	}
}

func TestNamesAreEscapedInPaths(t *testing.T) {
	var got string
	api := answering(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.EscapedPath() + "?" + r.URL.RawQuery
		fmt.Fprint(w, `{}`)
	})
	for _, c := range []struct {
		call func() error
		want string
	}{
		{func() error { return api.Stop(t.Context(), "m/t") }, "POST /api/v1/modules/m/t/stop?"},
		{func() error { return api.Delete(t.Context(), "m/t/u") }, "DELETE /api/v1/modules/m/t%2Fu?"},
		{func() error { return api.DeleteTopic(t.Context(), "a/b c") }, "DELETE /api/v1/topics/a%2Fb%20c?"},
		{func() error {
			_, err := api.Apply(t.Context(), "m", "", ApplyOptions{DryRun: true, File: "f.hr", Params: map[string]string{"x": "1 2"}})
			return err
		}, "PUT /api/v1/modules/m?dry_run=true&file=f.hr&param.x=1+2"},
	} {
		if err := c.call(); err != nil || got != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
}

func TestWhatIsNoServerIsToldApart(t *testing.T) {
	var conn *ConnectError
	if _, err := NewAPI("127.0.0.1:1").Status(t.Context()); !errors.As(err, &conn) {
		t.Errorf("nothing listens: got %v", err)
	}
	hangsUp := answering(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := hangsUp.Status(t.Context()); !errors.As(err, &conn) {
		t.Errorf("it hangs up: got %v", err)
	}
	other := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "<html>")
	})
	var refused *Error
	if _, err := other.Status(t.Context()); !errors.As(err, &refused) || refused.Code != "E2000" {
		t.Errorf("it is something else: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := other.Status(ctx); !errors.Is(err, context.Canceled) || errors.As(err, &conn) {
		t.Errorf("the caller gives up: got %v", err)
	}
	k, err := Kafka("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	if err := Reach(t.Context(), k); !errors.As(err, &conn) || conn.Address != "127.0.0.1:1" {
		t.Errorf("no Kafka: got %v", err)
	}
}

func TestASpanEndsWithItsLastOffset(t *testing.T) {
	s := NewSpan("t", Offsets{0: 5, 1: 3, 2: 0}, Offsets{0: 8, 1: 3, 2: 2})
	if parts := s.Partitions()["t"]; len(parts) != 2 {
		t.Errorf("partition 1 is empty, yet partitions are %v", parts)
	}
	for _, step := range []struct {
		p      int32
		offset int64
		take   bool
		done   bool
	}{
		{0, 5, true, false},
		{1, 3, false, false}, // not part of it
		{2, 4, false, false}, // beyond, over a gap
		{2, 5, false, false},
		{0, 7, true, true},
		{0, 8, false, true},
	} {
		if got := s.Take(&kgo.Record{Partition: step.p, Offset: step.offset}); got != step.take || s.Done() != step.done {
			t.Errorf("record %d/%d: taken %v, done %v", step.p, step.offset, got, s.Done())
		}
	}
}

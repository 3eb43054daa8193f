package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

// The parts of package client that need a server are tested here: client itself links none.

func publish(t *testing.T, seeds, topic string, values ...string) {
	t.Helper()
	p, err := client.NewPublisher(seeds, topic, client.AnyPartition, client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, v := range values {
		if err := p.Publish(t.Context(), client.Message{Value: []byte(v)}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := p.Flush(t.Context())
	if err != nil || s.Acknowledged != int64(len(values)) || s.Sent != s.Acknowledged || s.P50 <= 0 {
		t.Fatalf("%+v, %v", s, err)
	}
}

func readAll(t *testing.T, seeds, topic string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := []string{}
	err := client.ReadAll(ctx, seeds, topic, func(r *kgo.Record) error {
		got = append(got, string(r.Value))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestReadAllEndsAtTimeMarksAndInTheGapsOfViews(t *testing.T) {
	at := testServer(t)
	seeds, api := at[1], client.NewAPI(at[3])
	_, err := api.Apply(t.Context(), "m", `
		topic src { n: int64, ts: time("ms") } with key (), time ts lag 1s
		topic sums = from src |> agg n = sum(n) by k = n % 2 window tumble(1s)
		view big = from src |> where n >= 3
		view none = from src |> where n > 100`, client.ApplyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, seeds, "src"); len(got) != 0 {
		t.Errorf("an empty topic: %v", got)
	}
	if got := readAll(t, seeds, "big"); len(got) != 0 {
		t.Errorf("a view of an empty topic: %v", got)
	}
	var rows []string
	for i, n := range []int{1, 2, 3, 4, 1, 1} {
		rows = append(rows, fmt.Sprintf(`{"n":%d,"ts":%d}`, n, 1_700_000_000_000+i))
	}
	publish(t, seeds, "src", rows...)
	if err := api.EndTopic(t.Context(), "src"); err != nil {
		t.Fatal(err)
	}
	if got := readAll(t, seeds, "src"); !slices.Equal(got, rows) {
		t.Errorf("src: %v", got)
	}
	if got := readAll(t, seeds, "big"); len(got) != 2 || !strings.HasPrefix(got[1], `{"n":4,`) {
		t.Errorf("big: %v", got)
	}
	if got := readAll(t, seeds, "none"); len(got) != 0 {
		t.Errorf("none: %v", got)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		p, err := api.Pipeline(t.Context(), "m/sums")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", p, err)
		}
		if p.Watermark == "+inf" {
			break
		}
	}
	if got := readAll(t, seeds, "sums"); len(got) != 2 || !strings.Contains(got[1], `"n":6`) {
		t.Errorf("sums: %v", got)
	}
	stop := errors.New("stop")
	if err := client.ReadAll(t.Context(), seeds, "src", func(*kgo.Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the callee's error is lost: %v", err)
	}
	if err := client.ReadAll(t.Context(), seeds, "nowhere", nil); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("an unknown topic: %v", err)
	}
}

func TestAPublisherCountsWhatWasRefused(t *testing.T) {
	at := testServer(t)
	seeds, api := at[1], client.NewAPI(at[3])
	if _, err := api.CreateTopic(t.Context(), client.TopicSpec{Name: "small", Partitions: 1, Configs: map[string]string{"max.message.bytes": "1024"}}); err != nil {
		t.Fatal(err)
	}
	p, err := client.NewPublisher(seeds, "small", client.AnyPartition, client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i, size := range []int{10, 2000} {
		if err := p.Publish(t.Context(), client.Message{Value: bytes.Repeat([]byte("x"), size)}); err != nil {
			t.Fatal(err)
		}
		s, err := p.Flush(t.Context())
		var refused *client.RefusedError
		switch {
		case i == 0 && err != nil, s.Sent != int64(i+1), s.Acknowledged != 1, s.Failed != int64(i):
			t.Fatalf("record of %d B: %+v, %v", size, s, err)
		case i == 1 && (!errors.Is(err, client.ErrPartly) || !errors.As(err, &refused) || !errors.Is(refused.First, kerr.MessageTooLarge)):
			t.Fatalf("record of %d B: %v", size, err)
		}
	}
	if err := p.Publish(t.Context(), client.Message{}); !errors.Is(err, client.ErrPartly) {
		t.Errorf("a publisher goes on after a refusal: %v", err)
	}
	if n := len(readAll(t, seeds, "small")); n != 1 {
		t.Errorf("the topic has %d records", n)
	}
}

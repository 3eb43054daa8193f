package client

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/log/record"
)

func refusal(n int32, code *kerr.Error) kmsg.FetchResponseTopicPartition {
	p := fetchPart(n, -1, nil)
	p.ErrorCode = code.Code
	return p
}

// Codes that may pass are borne for RetryFor, and only in a row.
func TestAPartitionThatIsRefusedForTooLongFails(t *testing.T) {
	answer := func(l *lane, parts ...kmsg.FetchResponseTopicPartition) bool {
		t.Helper()
		l.compose()
		move, err := l.parse(&answer{}, fetchAnswer(parts...))
		if err != nil {
			t.Fatal(err)
		}
		return move
	}
	r, l := oneLane(3, 10)
	p := l.parts[0]
	if !answer(l, refusal(0, kerr.KafkaStorageError)) || r.err() != nil || p.refusing.IsZero() {
		t.Fatalf("after the first refusal, at %v: %v", p.refusing, r.err())
	}
	p.refusing = time.Now().Add(-2 * r.o.RetryFor)
	if answer(l, fetchPart(0, 4, batchAt(3, record.None, "x"))); !p.refusing.IsZero() {
		t.Error("records do not end a row of refusals")
	}
	answer(l, refusal(0, kerr.NotLeaderForPartition))
	p.refusing = time.Now().Add(-2 * r.o.RetryFor)
	answer(l, refusal(0, kerr.KafkaStorageError))
	e := (*ReadError)(nil)
	if err := r.err(); !errors.As(err, &e) || e.Partition != 0 || e.Offset != 4 || !errors.Is(err, kerr.KafkaStorageError) {
		t.Errorf("got %v", err)
	}
}

// Other codes between refusals for rot begin the count anew.
func TestRotIsRefusedThriceInARow(t *testing.T) {
	r, l := oneLane(3, 10)
	for i, code := range []*kerr.Error{kerr.CorruptMessage, kerr.CorruptMessage, kerr.NotLeaderForPartition, kerr.CorruptMessage, kerr.CorruptMessage, kerr.CorruptMessage} {
		if r.err() != nil {
			t.Fatalf("before answer %d: %v", i, r.err())
		}
		l.compose()
		if _, err := l.parse(&answer{}, fetchAnswer(refusal(1, code))); err != nil {
			t.Fatal(err)
		}
	}
	if e := (*ReadError)(nil); !errors.As(r.err(), &e) || e.Partition != 1 || e.Offset != 3 {
		t.Errorf("got %v", r.err())
	}
}

// A reader of a range that is rotten in the middle hands out what is in front of the rot, and says where it is.
func TestAReaderEndsAtRot(t *testing.T) {
	b := newScriptedBroker(t)
	b.fetch = func(req *kmsg.FetchRequest) []byte {
		var parts []kmsg.FetchResponseTopicPartition
		for _, p := range req.Topics[0].Partitions {
			switch {
			case p.FetchOffset == 0:
				parts = append(parts, fetchPart(p.Partition, 10, batchAt(0, record.None, "a", "b", "c")))
			case p.Partition == 0:
				parts = append(parts, refusal(0, kerr.CorruptMessage))
			default:
				parts = append(parts, fetchPart(p.Partition, 10, nil))
			}
		}
		return fetchAnswer(parts...)
	}
	r, err := NewReader(t.Context(), b.ln.Addr().String(), ReaderOptions{Topic: "t", End: Latest, MaxWait: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	n := map[int32]int{}
	for {
		var batch *RecordBatch
		if batch, err = r.Next(t.Context()); err != nil {
			break
		}
		for batch.Next() {
			n[batch.Partition]++
		}
	}
	e := (*ReadError)(nil)
	if !errors.As(err, &e) || e.Topic != "t" || e.Partition != 0 || e.Offset != 3 || !errors.Is(err, kerr.CorruptMessage) || n[0] != 3 {
		t.Errorf("%v after %v records", err, n)
	}
}

// Behind a seed that answers there may be a leader that does not, or none at all.
func TestALeaderThatIsNotThereIsGivenUp(t *testing.T) {
	nobody := newScriptedBroker(t)
	_ = nobody.ln.Close()
	for name, address := range map[string]string{"nobody leads": "", "the leader does not answer": nobody.ln.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			r, l := oneLane(0, 10)
			r.ctx, r.cancel = context.WithCancel(t.Context())
			defer r.Close()
			r.o.Connections = 1
			leaders := map[int32]string{0: address, 1: address}
			r.connect(l.parts, leaders)
			parts := <-r.moved
			if err := r.err(); err != nil {
				t.Fatalf("after the first failure: %v", err)
			}
			for _, p := range parts {
				p.failing = time.Now().Add(-2 * r.o.RetryFor)
			}
			r.connect(parts, leaders)
			<-r.failed
			if e := (*ConnectError)(nil); !errors.As(r.err(), &e) {
				t.Errorf("got %v", r.err())
			}
		})
	}
}

// poll is what a franz-go client gives for partition 0 of topic t.
func poll(err error, offsets ...int64) kgo.Fetches {
	p := kgo.FetchPartition{Err: err}
	for _, o := range offsets {
		p.Records = append(p.Records, &kgo.Record{Topic: "t", Offset: o})
	}
	return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{p}}}}}
}

func TestPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPatience(Offsets{0: 5})
		judge := func(f kgo.Fetches) error { return p.Judge(t.Context(), f) }
		if err := errors.Join(judge(kgo.NewErrFetch(context.DeadlineExceeded)), judge(poll(kerr.KafkaStorageError)), judge(poll(nil, 5, 6))); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var err error
		for err == nil {
			err = judge(poll(kerr.KafkaStorageError))
		}
		e := (*ReadError)(nil)
		if took := time.Since(begun); !errors.As(err, &e) || e.Offset != 7 || e.Partition != 0 || took < patienceFor || took > patienceFor+time.Second {
			t.Errorf("%v after %v", err, took)
		}
		begun = time.Now()
		for _, code := range []error{kerr.CorruptMessage, kerr.TopicAuthorizationFailed} {
			if err := NewPatience(nil).Judge(t.Context(), poll(code, 8)); !errors.As(err, &e) || e.Offset != 9 || !errors.Is(err, code) {
				t.Errorf("%v: %v", code, err)
			}
		}
		if err := judge(poll(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("what cannot pass is borne for %v", took)
		}
	})
}

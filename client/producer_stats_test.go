package client

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Whoever has heard of a record's end finds it in the numbers: they are looked at from inside the callback, so before
// ProduceSync or Flush can have returned.
func TestARecordCountsBeforeItsCallback(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*partitionSim, *batch)
		err  error
		want ProducerStats
	}{
		{"acknowledged", func(s *partitionSim, b *batch) { s.pt.answered(b, s.now, 7, 0, nil) }, nil, ProducerStats{Acknowledged: 3}},
		{"already there", func(s *partitionSim, b *batch) {
			s.pt.answered(b, s.now, -1, kerr.DuplicateSequenceNumber.Code, nil)
		}, nil, ProducerStats{Acknowledged: 3}},
		{"refused", func(s *partitionSim, b *batch) { s.pt.answered(b, s.now, -1, kerr.PolicyViolation.Code, nil) }, kerr.PolicyViolation, ProducerStats{Failed: 3}},
		{"expired", func(s *partitionSim, b *batch) {
			s.pt.lost(b, errors.New("cut"))
			s.pt.expire(s.now.Add(2*s.p.o.DeliveryTimeout), s.p.o.DeliveryTimeout)
		}, ErrDeliveryTimeout, ProducerStats{Failed: 3}},
		{"abandoned", func(s *partitionSim, _ *batch) { s.pt.abandon(ErrProducerClosed) }, ErrProducerClosed, ProducerStats{Failed: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newPartitionSim(t, 1)
			var seen []ProducerStats
			look := func(a Ack) {
				if !errors.Is(a.Err, c.err) {
					t.Errorf("the end is %v, want %v", a.Err, c.err)
				}
				st := s.p.Stats()
				if (st.Err != nil) != (c.err != nil) || !errors.Is(st.Err, c.err) {
					t.Errorf("the numbers say %v, want %v", st.Err, c.err)
				}
				st.Err = nil
				seen = append(seen, st)
			}
			for range 3 {
				if _, err := s.pt.append(&Message{Value: make([]byte, 8)}, look, true); err != nil {
					t.Fatal(err)
				}
			}
			b, _, _ := s.pt.next(true)
			if b == nil || b.count() != 3 {
				t.Fatal("the records are not one batch")
			}
			if c.err == nil {
				c.want.Bytes = int64(len(b.buf))
			}
			if s.p.Stats().Buffered == 0 {
				t.Error("what flies is not buffered")
			}
			c.end(s, b)
			s.p.deliver()
			if len(seen) != 3 {
				t.Fatalf("%d callbacks, want 3", len(seen))
			}
			for i, st := range seen {
				if st != c.want {
					t.Errorf("callback %d saw %+v, want %+v", i, st, c.want)
				}
			}
		})
	}
}

// Room that a batch has used is there for others while its callbacks run, of which TryProduce is allowed to use it.
func TestACallbackFindsTheRoomOfItsRecord(t *testing.T) {
	s := newPartitionSim(t, 1)
	s.p.o.MaxBufferedBytes = int64(s.p.classBytes(0))
	w := &Writer{t: s.pt.t, fixed: 0}
	again := errors.New("not called")
	if err := w.TryProduce(Message{Value: make([]byte, 8)}, func(Ack) { again = w.TryProduce(Message{Value: make([]byte, 8)}, nil) }); err != nil {
		t.Fatal(err)
	}
	b, _, _ := s.pt.next(true)
	if err := w.TryProduce(Message{Value: make([]byte, 8)}, nil); !errors.Is(err, ErrBufferFull) {
		t.Fatalf("there is room beside what flies: %v", err)
	}
	s.pt.answered(b, s.now, 0, 0, nil)
	if s.p.deliver(); again != nil {
		t.Error(again)
	}
}

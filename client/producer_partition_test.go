package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/headrace/headrace/log/record"
)

// A modelBroker is one partition's leader as Kafka's rules for idempotent producers have it.
type modelBroker struct {
	t        *testing.T
	log      []uint64
	id       int64 // of the producer that it knows
	next     int32
	last     []modelBatch // five
	admitted int          // bytes of a batch
}

type modelBatch struct {
	seq, count int32
	offset     int64
}

// append is what the broker does with a batch, and its answer.
func (m *modelBroker) append(batch []byte) (code int16, offset int64) {
	h, err := record.Verify(batch)
	if err != nil {
		m.t.Fatal(err)
	}
	if len(batch) > m.admitted {
		return kerr.MessageTooLarge.Code, -1
	}
	switch {
	case h.ProducerID != m.id:
		if h.BaseSequence != 0 {
			return kerr.UnknownProducerID.Code, -1
		}
		m.id, m.next, m.last = h.ProducerID, 0, nil
	case h.BaseSequence != m.next:
		for _, b := range m.last {
			if b.seq == h.BaseSequence && b.count == h.Count {
				return 0, b.offset
			}
		}
		return kerr.OutOfOrderSequenceNumber.Code, -1
	}
	offset = int64(len(m.log))
	m.last = append(m.last, modelBatch{h.BaseSequence, h.Count, offset})
	m.last = m.last[max(0, len(m.last)-5):]
	m.next = nextSequence(h.BaseSequence, int(h.Count))
	var r record.Reader
	if err := r.Reset(batch); err != nil {
		m.t.Fatal(err)
	}
	for r.Next() {
		m.log = append(m.log, binary.BigEndian.Uint64(r.Record().Value))
	}
	return 0, offset
}

// A flight is a batch under way in the model: what was sent stays what it was.
type modelFlight struct {
	b    *batch
	sent []byte
}

// A partitionSim drives one partition against a modelBroker over a network that loses answers and connections.
type partitionSim struct {
	t      *testing.T
	r      *rand.Rand
	p      *Producer
	pt     *partition
	broker *modelBroker
	flying []modelFlight
	late   [][]byte // of lost connections: may still arrive
	acks   map[uint64]Ack
	now    time.Time
	ids    int64
	count  uint64
	calm   bool
}

func newPartitionSim(t *testing.T, seed uint64) *partitionSim {
	s := &partitionSim{t: t, r: rand.New(rand.NewPCG(seed, 9)), acks: map[uint64]Ack{}, now: time.Now(), ids: 1}
	s.p = &Producer{o: ProducerOptions{BatchBytes: 2048, DeliveryTimeout: time.Hour}.withDefaults(), kick: make(chan struct{}, 1)}
	s.p.mu.room = make(chan struct{})
	topic := &topicState{p: s.p, name: "t"}
	topic.limit.Store(2048)
	s.pt = &partition{t: topic, ident: identity{id: 1, ok: true}}
	s.pt.link = &link{p: s.p, node: 1, kick: make(chan struct{}, 1)}
	topic.parts = []*partition{s.pt}
	s.broker = &modelBroker{t: t, id: -1, admitted: []int{1 << 20, 1 << 20, 600}[s.r.IntN(3)]}
	return s
}

func (s *partitionSim) step() {
	pt := s.pt
	switch k := s.r.IntN(10); {
	case k < 3 && !s.calm:
		for range 1 + s.r.IntN(8) {
			m := Message{Value: binary.BigEndian.AppendUint64(nil, s.count), Tag: s.count}
			m.Value = append(m.Value, make([]byte, s.r.IntN(300))...)
			if _, err := pt.append(&m, s.done, true); err != nil {
				if !errors.Is(err, ErrBufferFull) {
					s.t.Fatal(err)
				}
				break
			}
			s.count++
		}
	case k < 6:
		pt.settle()
		if !pt.ident.ok && !pt.settling {
			s.ids++
			pt.ident, pt.sequence = identity{id: s.ids, ok: true}, 0
		}
		for range s.r.IntN(3) + 1 {
			if pt.blocked(s.now) || len(s.flying) == maxInflight {
				break
			}
			if b, _, _ := pt.next(true); b != nil {
				s.flying = append(s.flying, modelFlight{b, slices.Clone(b.buf)})
			}
		}
	case k < 9:
		if len(s.flying) > 0 {
			s.answer()
		}
	default:
		if !s.calm && len(s.late) > 0 && s.r.IntN(2) == 0 { // a request of an old connection
			s.broker.append(s.late[0])
			s.late = s.late[1:]
		}
		if !s.calm && s.r.IntN(3) == 0 {
			s.lose()
		}
	}
	s.now = s.now.Add(time.Duration(s.r.IntN(20)) * time.Millisecond)
	s.p.deliver()
}

// answer has the broker take the oldest request.
func (s *partitionSim) answer() {
	f := s.flying[0]
	s.flying = s.flying[1:]
	fate := s.r.IntN(24)
	if s.calm {
		fate = 23
	}
	no := func(e *kerr.Error, words string) { s.pt.answered(f.b, s.now, -1, e.Code, &words) }
	switch fate {
	case 0:
		no(kerr.NotLeaderForPartition, "")
	case 1:
		no(kerr.KafkaStorageError, "E1035 the disk takes no records")
	case 2:
		no(kerr.RequestTimedOut, "E1030 it was not appended")
	case 3:
		s.broker.append(f.sent)
		no(kerr.RequestTimedOut, "E1030 it was, perhaps")
	case 4:
		no(kerr.PolicyViolation, "E1008 not yours")
	default:
		code, offset := s.broker.append(f.sent)
		s.pt.answered(f.b, s.now, offset, code, nil)
	}
}

// lose cuts the connection: what flies has arrived up to some request, or will, or not.
func (s *partitionSim) lose() {
	arrived := s.r.IntN(len(s.flying) + 1)
	s.late = nil
	for i, f := range s.flying {
		if i < arrived {
			s.broker.append(f.sent)
		} else if s.r.IntN(2) == 0 {
			s.late = append(s.late, f.sent)
		}
	}
	for _, f := range s.flying {
		s.pt.lost(f.b, errors.New("cut"))
	}
	s.flying = nil
}

func (s *partitionSim) done(a Ack) {
	if _, ok := s.acks[a.Tag]; ok {
		s.t.Fatalf("record %d is answered twice", a.Tag)
	}
	s.acks[a.Tag] = a
}

// TestAPartitionIsExactlyOnceWhateverTheNetworkDoes: acknowledged is in the log once, at the offset that was said; a
// definite no is not there; an unknown outcome at most once; the order is that of the calls.
func TestAPartitionIsExactlyOnceWhateverTheNetworkDoes(t *testing.T) {
	var acked, refused, unknown int
	seeds := uint64(60)
	if os.Getenv("HEADRACE_LONG") != "" {
		seeds = 5000
	}
	for seed := range seeds {
		s := newPartitionSim(t, seed)
		for range 400 {
			s.step()
		}
		s.calm = true
		for i := 0; len(s.acks) < int(s.count); i++ {
			if i > 20_000 {
				t.Fatalf("seed %d: %d of %d answered; queue %d, flying %d, settling %v, anew %d", seed, len(s.acks), s.count, len(s.pt.queue), len(s.pt.flying), s.pt.settling, s.pt.anew)
			}
			s.step()
		}
		where := map[uint64]int64{}
		for offset, v := range s.broker.log {
			if before, ok := where[v]; ok {
				t.Fatalf("seed %d: record %d is at %d and %d", seed, v, before, offset)
			}
			if offset > 0 && s.broker.log[offset-1] > v {
				t.Fatalf("seed %d: record %d stands behind %d", seed, v, s.broker.log[offset-1])
			}
			where[v] = int64(offset)
		}
		for tag, a := range s.acks {
			at, there := where[tag]
			switch {
			case a.Err == nil:
				acked++
				if !there || a.Offset != at {
					t.Fatalf("seed %d: record %d acknowledged at %d, is at %d (%v)", seed, tag, a.Offset, at, there)
				}
			case errors.Is(a.Err, ErrUnknownOutcome):
				unknown++
			default:
				refused++
				if there {
					t.Fatalf("seed %d: record %d was refused (%v) and is at %d", seed, tag, a.Err, at)
				}
			}
		}
		if n := s.p.buffered.Load(); n != 0 {
			t.Fatalf("seed %d: %d bytes of buffers are lost", seed, n)
		}
	}
	if acked < 1000 || refused < 50 {
		t.Errorf("the simulation is too quiet: %d acknowledged, %d refused, %d unknown", acked, refused, unknown)
	}
	t.Logf("%d acknowledged, %d refused, %d unknown", acked, refused, unknown)
}

// What waited too long is given up: as a no if it was never sent, as unknown if it may have arrived.
func TestRecordsExpire(t *testing.T) {
	for _, sent := range []bool{false, true} {
		s := newPartitionSim(t, 1)
		m := Message{Value: make([]byte, 8)}
		if _, err := s.pt.append(&m, s.done, true); err != nil {
			t.Fatal(err)
		}
		if sent {
			b, _, _ := s.pt.next(true)
			s.pt.lost(b, errors.New("cut"))
		}
		s.pt.expire(s.now.Add(59*time.Minute), time.Hour)
		if s.p.deliver(); len(s.acks) != 0 {
			t.Fatal("too early")
		}
		s.pt.expire(s.now.Add(61*time.Minute), time.Hour)
		s.p.deliver()
		if a := s.acks[0]; !errors.Is(a.Err, ErrDeliveryTimeout) || errors.Is(a.Err, ErrUnknownOutcome) != sent {
			t.Errorf("sent %v: %v", sent, a.Err)
		}
	}
}

func TestAnswersAreJudged(t *testing.T) {
	for _, c := range []struct {
		err   *kerr.Error
		words string
		want  verdict
	}{
		{kerr.DuplicateSequenceNumber, "", taken},
		{kerr.NotLeaderForPartition, "", retryLater},
		{kerr.KafkaStorageError, "E1035 the disk is full", retry},
		{kerr.KafkaStorageError, "E1031 busy", retry},
		{kerr.KafkaStorageError, "", unsure},
		{kerr.RequestTimedOut, "E1030 unknown", unsure},
		{kerr.NotEnoughReplicas, "", retry},
		{kerr.NotEnoughReplicasAfterAppend, "", unsure},
		{kerr.UnknownServerError, "", unsure},
		{kerr.OutOfOrderSequenceNumber, "", outOfOrder},
		{kerr.UnknownProducerID, "", forgotten},
		{kerr.MessageTooLarge, "", tooLarge},
		{kerr.TopicAuthorizationFailed, "", refused},
		{kerr.InvalidRecord, "", refused},
		{kerr.PolicyViolation, "", refused},
	} {
		if got := judge(c.err.Code, &c.words); got != c.want {
			t.Errorf("%v %q: %d, want %d", c.err, c.words, got, c.want)
		}
	}
	if judge(0, nil) != taken {
		t.Error("no error is no acknowledgement")
	}
	err := error(&ProduceError{Topic: "t", Partition: 2, Unknown: true, Err: fmt.Errorf("E1: %w", kerr.RequestTimedOut)})
	if !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, kerr.RequestTimedOut) {
		t.Error(err)
	}
}

package client

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// How long a Patience bears a code that may pass, and how long it waits before the next poll meanwhile.
const (
	patienceFor   = 10 * time.Second
	patiencePause = 100 * time.Millisecond
)

// A Patience judges the errors of a franz-go client's polls of one topic. Left alone the client asks for ever, and says
// nothing, where a server refuses records with a code that may pass, and CORRUPT_MESSAGE counts as such. The client must
// be made with kgo.KeepRetryableFetchErrors.
//
// One goroutine uses it.
type Patience struct {
	next     Offsets             // of each partition: what comes next
	refusing map[int32]time.Time // since when it is refused
}

// NewPatience is one for a reader that begins at from; a partition may be missing.
func NewPatience(from Offsets) *Patience {
	p := &Patience{next: Offsets{}, refusing: map[int32]time.Time{}}
	for n, at := range from {
		p.next[n] = at
	}
	return p
}

// Judge says whether reading can go on after a poll; its records are to be used before its error is heeded. It waits a
// moment where a partition is refused with a code that may pass. The wait of the poll having ended is no error.
//
// Errors: *ReadError, at once for rot and what cannot pass, else after 10 s; what the client itself gives up with; ctx's.
func (p *Patience) Judge(ctx context.Context, f kgo.Fetches) error {
	var final error
	refused := false
	f.EachPartition(func(t kgo.FetchTopicPartition) {
		if n := len(t.Records); n > 0 {
			p.next[t.Partition] = t.Records[n-1].Offset + 1
		}
		switch {
		case t.Topic == "" && t.Partition < 0: // the caller's wait
		case t.Err == nil:
			delete(p.refusing, t.Partition)
		default:
			refused = true
			if err := p.refused(t.Topic, t.Partition, t.Err); final == nil {
				final = err
			}
		}
	})
	if final != nil || !refused {
		return final
	}
	select {
	case <-time.After(patiencePause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused answers the error of a partition if it is final.
func (p *Patience) refused(topic string, partition int32, err error) error {
	code := (*kerr.Error)(nil)
	if !errors.As(err, &code) {
		return err
	}
	since, ok := p.refusing[partition]
	if !ok {
		since = time.Now()
		p.refusing[partition] = since
	}
	if code.Retriable && code != kerr.CorruptMessage && time.Since(since) < patienceFor {
		return nil
	}
	at, ok := p.next[partition]
	if !ok {
		at = -1
	}
	return &ReadError{Topic: topic, Partition: partition, Offset: at, Err: err}
}

package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// How often the keeper looks around: while something waits for it, while anything is under way, and how many of the
// latter it stays awake without work.
const (
	troubleTick = 10 * time.Millisecond
	workTick    = 100 * time.Millisecond
	idleTicks   = 10
	// controlTimeout bounds a request for metadata or an identity.
	controlTimeout = 5 * time.Second
)

func (p *Producer) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// keep is the keeper goroutine: it ends pauses, gives up what takes too long, and sees that leaders and identities are
// asked for.
func (p *Producer) keep() {
	timer := time.NewTimer(workTick)
	defer timer.Stop()
	asking, asked := false, make(chan struct{}, 1)
	var last time.Time // of asking
	idle := 0
	for {
		select {
		case <-p.kick:
			idle = 0
		case <-timer.C:
		case <-asked:
			asking = false
		case <-p.ctx.Done():
			if asking {
				<-asked
			}
			return
		}
		p.ticks.Add(1)
		now := time.Now()
		p.mu.Lock()
		identity := p.look(now)
		ask := (identity || p.mu.wantMeta) && !asking && now.Sub(last) >= troubleTick*5
		meta := p.mu.wantMeta
		if ask {
			p.mu.wantMeta = false
		}
		next := workTick
		switch {
		case len(p.mu.troubled) > 0 || p.mu.wantMeta && !ask:
			next, idle = troubleTick, 0
		case p.working() || asking || ask:
			idle = 0
		default:
			idle++
		}
		p.parked.Store(idle > idleTicks)
		p.mu.Unlock()
		if ask {
			asking, last = true, now
			go func() { // waited for by asked
				p.control(meta, identity)
				asked <- struct{}{}
			}()
		}
		p.deliver()
		timer.Stop()
		if idle <= idleTicks {
			timer.Reset(next)
		}
	}
}

// working says whether anything is under way or waits. The delivery lock is held.
func (p *Producer) working() bool {
	for _, l := range p.mu.links {
		if len(l.flying) > 0 || len(l.full) > 0 || len(l.open) > 0 {
			return true
		}
	}
	return len(p.mu.finished) > 0
}

// look goes through what may have become possible or too late. It says whether a partition needs an identity. The
// delivery lock is held.
func (p *Producer) look(now time.Time) (identity bool) {
	for _, l := range p.mu.links {
		if l.wire == nil {
			for _, list := range [][]*partition{l.full, l.open} {
				for _, pt := range list {
					pt.expire(now, p.o.DeliveryTimeout)
				}
			}
			continue
		}
		if len(l.flying) > 0 && now.Sub(l.flying[0].sent) > p.o.RequestTimeout {
			l.broken(l.wire, fmt.Errorf("client: no answer in %v", p.o.RequestTimeout))
		}
	}
	troubled := p.mu.troubled
	p.mu.troubled = nil
	for _, pt := range troubled {
		pt.troubled = false
		pt.settle()
		pt.expire(now, p.o.DeliveryTimeout)
		pt.settle()
		if !pt.ident.ok {
			identity = true
		}
		if pt.link == nil {
			p.mu.wantMeta = true
		}
		switch {
		case pt.blocked(now):
			p.trouble(pt)
		default:
			p.list(pt, true)
			pt.link.wake()
		}
	}
	return identity
}

// control asks for leaders, and for one identity for all partitions that need one.
func (p *Producer) control(meta, identity bool) {
	ctx, cancel := context.WithTimeout(p.ctx, controlTimeout)
	defer cancel()
	if identity {
		if id, err := p.askIdentity(ctx); err == nil {
			p.mu.Lock()
			for _, t := range p.mu.topics {
				for _, pt := range t.parts {
					if !pt.ident.ok && !pt.settling {
						pt.ident, pt.sequence = id, 0
					}
				}
			}
			p.mu.Unlock()
		}
	}
	if !meta {
		return
	}
	p.mu.Lock()
	names := make([]string, 0, len(p.mu.topics))
	for name := range p.mu.topics {
		names = append(names, name)
	}
	p.mu.Unlock()
	resp, err := p.askMetadata(ctx, names)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.mu.wantMeta = true
		return
	}
	for i := range resp.Topics {
		if t := &resp.Topics[i]; t.Topic != nil && p.mu.topics[*t.Topic] != nil {
			p.lead(p.mu.topics[*t.Topic], resp, t)
		}
	}
}

// askIdentity asks the server for a new producer id.
func (p *Producer) askIdentity(ctx context.Context) (identity, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionTimeoutMillis = -1
	resp, err := req.RequestWith(ctx, p.admin)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return identity{}, fmt.Errorf("client: ask for a producer id: %w", err)
	}
	return identity{resp.ProducerID, resp.ProducerEpoch, true}, nil
}

func (p *Producer) askMetadata(ctx context.Context, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	return req.RequestWith(ctx, p.admin)
}

// lead sets the leaders of a topic's partitions. The delivery lock is held.
func (p *Producer) lead(t *topicState, resp *kmsg.MetadataResponse, rt *kmsg.MetadataResponseTopic) {
	for i := range rt.Partitions {
		part := &rt.Partitions[i]
		if part.Partition < 0 || int(part.Partition) >= len(t.parts) {
			continue
		}
		pt := t.parts[part.Partition]
		for k := range resp.Brokers {
			b := &resp.Brokers[k]
			if b.NodeID != part.Leader {
				continue
			}
			l := p.linkTo(b.NodeID, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
			if pt.link != nil && pt.link != l && len(pt.flying) > 0 {
				pt.settling = true
			}
			pt.link = l
		}
	}
}

// openTopic asks for a topic's partitions and leaders, and for an identity if there is none.
func (p *Producer) openTopic(ctx context.Context, name string) (*topicState, error) {
	if err := p.Reach(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	id := p.mu.ident
	p.mu.Unlock()
	if !id.ok {
		var err error
		if id, err = p.askIdentity(ctx); err != nil {
			return nil, err
		}
	}
	resp, err := p.askMetadata(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, errors.New("client: the server's metadata has other topics")
	}
	rt := &resp.Topics[0]
	if err := kerr.ErrorForCode(rt.ErrorCode); err != nil {
		return nil, err
	}
	if len(rt.Partitions) == 0 || len(rt.Partitions) > maxPartitions {
		return nil, fmt.Errorf("client: the topic has %d partitions", len(rt.Partitions))
	}
	t := &topicState{p: p, name: name, parts: make([]*partition, len(rt.Partitions))}
	t.limit.Store(int64(p.o.BatchBytes))
	t.sticky.Store(uint32(time.Now().UnixNano()) >> 8) // producers do not all begin with the same one
	for i := range t.parts {
		t.parts[i] = &partition{t: t, index: int32(i), ident: id}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch old := p.mu.topics[name]; {
	case p.closed.Load():
		return nil, ErrProducerClosed
	case old != nil:
		return old, nil
	}
	if !p.mu.ident.ok {
		p.mu.ident = id
	}
	p.mu.topics[name] = t
	p.lead(t, resp, rt)
	return t, nil
}

// maxPartitions bounds what a server may claim.
const maxPartitions = 1_000_000

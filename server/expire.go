package server

import (
	"context"
	"time"

	"github.com/headrace/headrace/log"
)

// Offsets of groups that nobody uses any more would hold records back for ever, and lie about in lists. A group expires
// when it has had no member and committed nothing for Options.OffsetsRetention. The log decides that by append time: here
// it is told that groups with members are in use, and asked to forget those that have been silent for too long.

// DefaultOffsetsRetention is how long the offsets of a group stay after it became empty.
const DefaultOffsetsRetention = 7 * 24 * time.Hour

// expiryGrace is how long after a start no group expires: members come back first.
const expiryGrace = 10 * time.Minute

// A groupExpiry looks after the groups of a server. Its methods belong to one goroutine.
type groupExpiry struct {
	s       *Server
	after   time.Duration
	started time.Time
	members map[string]bool // groups that had members at the last look
}

func (s *Server) expireGroups(ctx context.Context) {
	after := s.opts.OffsetsRetention
	if after < 0 {
		return
	}
	x := &groupExpiry{s: s, after: after, started: s.opts.Now(), members: map[string]bool{}}
	tick := time.NewTicker(min(time.Minute, max(after/16, 50*time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, ok := s.node.Data().Leader(); ok {
			x.look(ctx, s.opts.Now())
		}
	}
}

// maxExpiryUnit bounds one proposal; what does not fit comes next time.
const maxExpiryUnit = 64 << 10

// look proposes what is due at now.
func (x *groupExpiry) look(ctx context.Context, now time.Time) {
	store := x.s.node.Store()
	var u log.Unit
	members := map[string]bool{}
	for _, g := range x.s.groups.List() {
		if x.s.groups.HasMembers(g) {
			members[g] = true
		}
	}
	touch := func(g string, age time.Duration) {
		if at, ok := store.GroupActive(g); ok && now.UnixNano()-at > int64(age) && u.Size() < maxExpiryUnit {
			u.Offsets(g, nil)
		}
	}
	for g := range members {
		touch(g, x.after/16)
	}
	for g := range x.members {
		if !members[g] {
			touch(g, 0) // it has become empty: its time begins
		}
	}
	x.members = members
	if now.Sub(x.started) >= min(expiryGrace, x.after) {
		for _, g := range store.IdleGroups(now.Add(-x.after).UnixNano()) {
			if u.Size() >= maxExpiryUnit {
				break
			}
			if !x.s.groups.HasMembers(g) {
				u.GroupExpire(g, x.after)
				x.s.log.Info("group.expired", "group", g, "after", x.after)
			}
		}
	}
	if u.Empty() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if r := x.s.node.Data().Do(ctx, &u); r.Err != nil && ctx.Err() == nil {
		x.s.log.Warn("group.expiry", "err", r.Err)
	}
}

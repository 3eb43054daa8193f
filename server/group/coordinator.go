// Package group coordinates consumer groups: the classic Kafka protocol of join, sync, heartbeat and
// leave, for members that split partitions (or anything: their metadata is opaque) among themselves.
//
// core decides, for one group, as a pure step function. Coordinator is its shell: it finds the group,
// feeds its core under the group's lock, parks requests and arms one timer a group. Members live in
// memory only: after a restart they are told UNKNOWN_MEMBER_ID and join again. Committed offsets are
// not kept here; they are in the log's store, and Commit only judges whether a member may commit.
//
// All methods of Coordinator may be called by any goroutine. Join and Sync block until the group has
// decided; the others do not wait for other members.
package group

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A Code is an error of the group protocol, by its number on the Kafka wire. 0 is success.
type Code int16

// The codes that groups answer.
const (
	NotAvailable          Code = 15 // COORDINATOR_NOT_AVAILABLE: stopping
	IllegalGeneration     Code = 22
	InconsistentProtocol  Code = 23
	InvalidGroupID        Code = 24
	UnknownMemberID       Code = 25
	InvalidSessionTimeout Code = 26
	RebalanceInProgress   Code = 27
	NonEmpty              Code = 68
	NotFound              Code = 69
	MemberIDRequired      Code = 79
	GroupMaxSizeReached   Code = 81
	FencedInstanceID      Code = 82
)

// Options of a Coordinator. The zero value works.
type Options struct {
	InitialDelay   time.Duration // how long the first rebalance of an empty group waits for more members; 0: not at all
	MinSession     time.Duration // default 1s
	MaxSession     time.Duration // default 30m
	MaxMembers     int           // of one group; default 10,000
	MaxMemberBytes int           // metadata of one member; default 1 MiB
	MaxGroups      int           // with members, in memory; default 10,000

	Now         func() time.Time                       // default time.Now
	NewMemberID func(clientID, instance string) string // default: client or instance id and a random UUID
}

func (o Options) withDefaults() Options {
	if o.MinSession == 0 {
		o.MinSession = time.Second
	}
	if o.MaxSession == 0 {
		o.MaxSession = 30 * time.Minute
	}
	if o.MaxMembers == 0 {
		o.MaxMembers = 10_000
	}
	if o.MaxMemberBytes == 0 {
		o.MaxMemberBytes = 1 << 20
	}
	if o.MaxGroups == 0 {
		o.MaxGroups = 10_000
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.NewMemberID == nil {
		o.NewMemberID = func(clientID, instance string) string {
			if instance != "" {
				clientID = instance
			}
			if len(clientID) > 255 {
				clientID = clientID[:255]
			}
			return clientID + "-" + uuid.NewString()
		}
	}
	return o
}

// A Member says who sends a request.
type Member struct {
	MemberID   string
	Instance   string // static membership; "" is none
	Generation int32  // -1: none
}

// A JoinRequest asks to be a member of the next generation.
type JoinRequest struct {
	MemberID         string // "" for a newcomer
	Instance         string
	ClientID, Host   string // for display only
	SessionTimeout   time.Duration
	RebalanceTimeout time.Duration
	ProtocolType     string
	Protocols        []Protocol // kept: the caller must not change them
	RequireMemberID  bool       // a newcomer is told its id first and joins again with it
	SkipAssignment   bool       // the client understands JoinResponse.Skip
}

// Bytes is what the request would keep in memory.
func (r *JoinRequest) Bytes() int {
	n := 0
	for _, p := range r.Protocols {
		n += len(p.Name) + len(p.Metadata)
	}
	return n
}

// A JoinResponse is a place in a generation. Members is set for the leader only.
type JoinResponse struct {
	Code         Code
	Generation   int32
	ProtocolType string
	Protocol     string
	Leader       string
	MemberID     string
	Members      []JoinedMember
	Skip         bool // the leader keeps the assignment that is there
}

// A JoinedMember is what the leader learns of a member.
type JoinedMember struct {
	ID, Instance string
	Metadata     []byte
}

// A SyncRequest asks for the member's assignment; the leader's brings everybody's.
type SyncRequest struct {
	Member
	ProtocolType, Protocol string // "": not told
	Assignments            []Assignment
}

// An Assignment is what the leader gives a member.
type Assignment struct {
	MemberID   string
	Assignment []byte
}

// A SyncResponse is a member's assignment.
type SyncResponse struct {
	Code                   Code
	ProtocolType, Protocol string
	Assignment             []byte
}

// A Leaver is a member to take out, by id or by instance.
type Leaver struct{ MemberID, Instance string }

// A Description is a group as it is now.
type Description struct {
	Group        string
	State        State
	Generation   int32
	ProtocolType string
	Protocol     string
	Leader       string
	Members      []MemberDescription // in joining order
}

// A MemberDescription is one member as it is now.
type MemberDescription struct {
	ID, Instance, ClientID, Host string
	Metadata, Assignment         []byte // opaque; must not be changed
}

// A Coordinator holds the groups that have members.
type Coordinator struct {
	opts Options
	mu   struct {
		sync.Mutex
		groups map[string]*shell
		closed chan struct{}
		done   bool
	}
}

// A shell is one group with its lock, its timer and the requests that wait. Its lock is taken while
// the Coordinator's is not held.
type shell struct {
	mu struct {
		sync.Mutex
		core  *core
		timer *time.Timer
		wait  map[token]chan any // each has room for its one answer
		last  token
		gone  bool // taken out of the map; look again
	}
}

// New returns a Coordinator without groups.
func New(o Options) *Coordinator {
	c := &Coordinator{opts: o.withDefaults()}
	c.mu.groups = map[string]*shell{}
	c.mu.closed = make(chan struct{})
	return c
}

// Close answers every parked request with NotAvailable and stops the timers.
func (c *Coordinator) Close() {
	c.mu.Lock()
	groups := c.mu.groups
	c.mu.groups = map[string]*shell{}
	if !c.mu.done {
		c.mu.done = true
		close(c.mu.closed)
	}
	c.mu.Unlock()
	for _, s := range groups {
		s.mu.Lock()
		s.mu.gone = true
		if s.mu.timer != nil {
			s.mu.timer.Stop()
		}
		s.mu.Unlock()
	}
}

var (
	errTooMany = errors.New("group: too many groups")
	errStopped = errors.New("group: the coordinator is stopped")
)

// find returns a group's shell, making it if create is set. Without create an unknown group is nil.
func (c *Coordinator) find(name string, create bool) (*shell, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.done {
		return nil, errStopped
	}
	s := c.mu.groups[name]
	if s != nil || !create {
		return s, nil
	}
	if len(c.mu.groups) >= c.opts.MaxGroups {
		return nil, errTooMany
	}
	s = &shell{}
	s.mu.core = newCore(name, c.opts, c.opts.Now())
	s.mu.wait = map[token]chan any{}
	c.mu.groups[name] = s
	return s, nil
}

// do feeds one input to a group's core and waits for its answer. input builds it with a token.
// ok is false when there is no such group.
func (c *Coordinator) do(ctx context.Context, name string, create bool, input func(token) any) (v any, ok bool, err error) {
	for {
		s, err := c.find(name, create)
		if err != nil || s == nil {
			return nil, false, err
		}
		s.mu.Lock()
		if s.mu.gone { // taken out of the map between find and here
			s.mu.Unlock()
			continue
		}
		s.mu.last++
		t := s.mu.last
		ch := make(chan any, 1)
		s.mu.wait[t] = ch
		c.step(s, input(t))
		s.mu.Unlock()

		select {
		case v = <-ch:
			return v, true, nil
		default:
		}
		select {
		case v = <-ch:
			return v, true, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-c.mu.closed:
			err = errStopped
		}
		s.mu.Lock()
		delete(s.mu.wait, t)
		s.mu.Unlock()
		return nil, true, err
	}
}

// step runs with s locked: it feeds the core, hands out the replies and arms the timer. A group that
// holds nothing any more leaves the map.
func (c *Coordinator) step(s *shell, in any) {
	now := c.opts.Now()
	for _, r := range s.mu.core.step(now, in) {
		if ch := s.mu.wait[r.token]; ch != nil {
			ch <- r.value
			delete(s.mu.wait, r.token)
		}
	}
	next := s.mu.core.next()
	switch {
	case next.IsZero():
		if s.mu.timer != nil {
			s.mu.timer.Stop()
		}
	case s.mu.timer == nil:
		s.mu.timer = time.AfterFunc(max(next.Sub(now), 0), func() { c.tick(s) })
	default:
		s.mu.timer.Reset(max(next.Sub(now), 0))
	}
}

// tick runs a group's deadlines and forgets it when it is idle.
func (c *Coordinator) tick(s *shell) {
	s.mu.Lock()
	if s.mu.gone {
		s.mu.Unlock()
		return
	}
	c.step(s, tickInput{})
	s.mu.Unlock()
	c.forget(s)
}

// forget takes an idle group out of the map. The Coordinator's lock is taken first, then the group's.
func (c *Coordinator) forget(s *shell) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.gone || !s.mu.core.idle() || len(s.mu.wait) > 0 {
		return
	}
	s.mu.gone = true
	if s.mu.timer != nil {
		s.mu.timer.Stop()
	}
	delete(c.mu.groups, s.mu.core.name)
}

// Join makes the caller a member of the group's next generation and waits for that generation.
func (c *Coordinator) Join(ctx context.Context, group string, r JoinRequest) JoinResponse {
	if group == "" {
		return JoinResponse{Code: InvalidGroupID, MemberID: r.MemberID, Generation: -1}
	}
	create := r.MemberID == ""
	v, ok, err := c.do(ctx, group, create, func(t token) any { return joinInput{t, r} })
	switch {
	case errors.Is(err, errTooMany):
		return JoinResponse{Code: GroupMaxSizeReached, MemberID: r.MemberID, Generation: -1}
	case err != nil:
		return JoinResponse{Code: NotAvailable, MemberID: r.MemberID, Generation: -1}
	case !ok:
		return JoinResponse{Code: UnknownMemberID, MemberID: r.MemberID, Generation: -1}
	}
	return v.(JoinResponse)
}

// Sync waits for the leader's assignment, or brings it.
func (c *Coordinator) Sync(ctx context.Context, group string, r SyncRequest) SyncResponse {
	if group == "" {
		return SyncResponse{Code: InvalidGroupID}
	}
	v, ok, err := c.do(ctx, group, false, func(t token) any { return syncInput{t, r} })
	switch {
	case err != nil:
		return SyncResponse{Code: NotAvailable}
	case !ok:
		return SyncResponse{Code: UnknownMemberID}
	}
	return v.(SyncResponse)
}

// Heartbeat keeps a member alive and tells it of a rebalance.
func (c *Coordinator) Heartbeat(ctx context.Context, group string, m Member) Code {
	return c.code(ctx, group, func(t token) any { return heartbeatInput{t, m} })
}

// Commit judges whether a member may commit offsets now. A group without members lets anybody commit
// that does not claim to be a member.
func (c *Coordinator) Commit(ctx context.Context, group string, m Member) Code {
	if group == "" {
		return InvalidGroupID
	}
	if s, err := c.find(group, false); err != nil {
		return NotAvailable
	} else if s == nil {
		if m.Generation < 0 && m.MemberID == "" {
			return 0
		}
		return UnknownMemberID
	}
	return c.code(ctx, group, func(t token) any { return commitInput{t, m} })
}

func (c *Coordinator) code(ctx context.Context, group string, in func(token) any) Code {
	if group == "" {
		return InvalidGroupID
	}
	v, ok, err := c.do(ctx, group, false, in)
	switch {
	case err != nil:
		return NotAvailable
	case !ok:
		return UnknownMemberID
	}
	return v.(Code)
}

// Leave takes members out and returns one code each.
func (c *Coordinator) Leave(ctx context.Context, group string, members []Leaver) []Code {
	out := make([]Code, len(members))
	v, ok, err := c.do(ctx, group, false, func(t token) any { return leaveInput{t, members} })
	switch {
	case err == nil && ok:
		if s, _ := c.find(group, false); s != nil {
			c.forget(s)
		}
		return v.([]Code)
	case err != nil:
		for i := range out {
			out[i] = NotAvailable
		}
	default:
		for i := range out {
			out[i] = UnknownMemberID
		}
	}
	return out
}

// Describe returns a group that has members, or ok = false.
func (c *Coordinator) Describe(group string) (d Description, ok bool) {
	s, _ := c.find(group, false)
	if s == nil {
		return Description{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.mu.core
	d = Description{
		Group: group, State: k.state, Generation: k.generation, ProtocolType: k.protocolType,
		Protocol: k.protocol, Leader: k.leader,
	}
	for _, m := range k.ordered() {
		md := MemberDescription{ID: m.id, Instance: m.instance, ClientID: m.clientID, Host: m.host}
		if k.state == Stable || k.state == Completing {
			for _, p := range m.protocols {
				if p.Name == k.protocol {
					md.Metadata = p.Metadata
				}
			}
			md.Assignment = m.assignment
		}
		d.Members = append(d.Members, md)
	}
	return d, true
}

// HasMembers says whether a group has members, or somebody who is about to be one.
func (c *Coordinator) HasMembers(group string) bool {
	s, _ := c.find(group, false)
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.core.members)+len(s.mu.core.pending) > 0
}

// List returns the names of the groups in memory, sorted.
func (c *Coordinator) List() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]string, 0, len(c.mu.groups))
	for name := range c.mu.groups {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

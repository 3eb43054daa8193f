package group

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// A State is where a group is between having no members and having an assignment.
type State uint8

// The states, in the order of a rebalance.
const (
	Empty      State = iota // no members; offsets may exist
	Preparing               // waiting for the members to join
	Completing              // joined; waiting for the leader's assignment
	Stable                  // assigned
)

// String is the name that Kafka's tools show.
func (s State) String() string {
	return [...]string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable"}[s]
}

// A Protocol is one assignment strategy that a member can do, with what it wants to tell the leader.
type Protocol struct {
	Name     string
	Metadata []byte
}

// A token names a request that waits for an answer.
type token uint64

// Inputs of a core. Each carries the token of the request to answer.
type (
	joinInput struct {
		token token
		JoinRequest
	}
	syncInput struct {
		token token
		SyncRequest
	}
	heartbeatInput struct {
		token token
		Member
	}
	leaveInput struct {
		token   token
		members []Leaver
	}
	commitInput struct { // may this member commit offsets?
		token token
		Member
	}
	tickInput struct{}
)

// A reply is the only action of a core: what a waiting request gets.
type reply struct {
	token token
	value any // JoinResponse, SyncResponse, Code or []Code
}

// member is one member. Its deadlines are zero when they do not run.
type member struct {
	id, instance     string
	clientID, host   string
	session          time.Duration
	rebalance        time.Duration
	protocols        []Protocol
	assignment       []byte
	order            int // of joining the group: the first is the natural leader
	join, sync       token
	joined, synced   bool // in the rebalance that is going on
	expires          time.Time
	supportsSkipping bool // JoinGroup 9: understands SkipAssignment
}

// A core decides everything about one group. It has no clock, no goroutine and no I/O: step takes the
// time and an input and returns the replies that are due, in order; next says when it wants a tick.
type core struct {
	opts         Options
	name         string
	state        State
	generation   int32
	protocolType string
	protocol     string
	leader       string
	members      map[string]*member
	static       map[string]string    // instance to member id
	pending      map[string]time.Time // member ids given out, and when they expire unjoined
	deadline     time.Time            // of the phase that is going on
	initial      bool                 // the phase is the initial delay of a group that was empty
	nextOrder    int
	changedAt    time.Time // of the last change of membership

	out []reply
}

func newCore(name string, o Options, now time.Time) *core {
	return &core{
		opts: o, name: name, members: map[string]*member{}, static: map[string]string{},
		pending: map[string]time.Time{}, changedAt: now,
	}
}

// step carries out one input at time now. The returned slice is valid until the next step.
func (c *core) step(now time.Time, in any) []reply {
	c.out = c.out[:0]
	c.expire(now)
	switch in := in.(type) {
	case joinInput:
		c.join(now, in)
	case syncInput:
		c.sync(now, in)
	case heartbeatInput:
		c.say(in.token, c.heartbeat(now, in.Member))
	case leaveInput:
		c.leave(now, in)
	case commitInput:
		c.say(in.token, c.mayCommit(now, in.Member))
	case tickInput:
	default:
		panic(fmt.Sprintf("group: unknown input %T", in))
	}
	return c.out
}

// next is when step wants a tick, or zero.
func (c *core) next() time.Time {
	var t time.Time
	earlier := func(u time.Time) {
		if !u.IsZero() && (t.IsZero() || u.Before(t)) {
			t = u
		}
	}
	if c.state == Preparing || c.state == Completing {
		earlier(c.deadline)
	}
	for _, m := range c.members {
		if m.join == 0 && m.sync == 0 {
			earlier(m.expires)
		}
	}
	for _, u := range c.pending {
		earlier(u)
	}
	return t
}

func (c *core) say(t token, v any) { c.out = append(c.out, reply{t, v}) }

// ordered returns the members in joining order: replies and choices must not follow map order.
func (c *core) ordered() []*member {
	out := make([]*member, 0, len(c.members))
	for _, m := range c.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *member) int { return a.order - b.order })
	return out
}

// expire carries out every deadline that has passed.
func (c *core) expire(now time.Time) {
	for id, t := range c.pending {
		if !now.Before(t) {
			delete(c.pending, id)
		}
	}
	removed := false
	for _, m := range c.ordered() {
		if m.join == 0 && m.sync == 0 && !m.expires.IsZero() && !now.Before(m.expires) {
			c.remove(now, m, UnknownMemberID)
			removed = true
		}
	}
	if removed {
		c.membershipChanged(now)
	}
	switch {
	case c.state == Preparing && !now.Before(c.deadline):
		c.completeJoin(now)
	case c.state == Preparing:
		c.tryCompleteJoin(now)
	case c.state == Completing && !now.Before(c.deadline):
		// The leader, or somebody, took too long to sync: go on without those.
		for _, m := range c.ordered() {
			if !m.synced {
				c.remove(now, m, UnknownMemberID)
			}
		}
		c.prepare(now)
	}
}

// join

func (c *core) join(now time.Time, in joinInput) {
	fail := func(code Code) { c.say(in.token, JoinResponse{Code: code, MemberID: in.MemberID, Generation: -1}) }
	if code := c.acceptable(in.JoinRequest); code != 0 {
		fail(code)
		return
	}
	if in.MemberID == "" {
		c.joinNew(now, in)
		return
	}
	if in.Instance != "" {
		switch id, ok := c.static[in.Instance]; {
		case !ok:
			fail(UnknownMemberID)
			return
		case id != in.MemberID:
			fail(FencedInstanceID)
			return
		}
	}
	if _, ok := c.pending[in.MemberID]; ok {
		delete(c.pending, in.MemberID)
		c.add(now, in, in.MemberID)
		return
	}
	m, ok := c.members[in.MemberID]
	if !ok {
		fail(UnknownMemberID)
		return
	}
	same := sameProtocols(m.protocols, in.Protocols)
	switch {
	case c.state == Completing && same, c.state == Stable && same && m.id != c.leader:
		// A retried join of the generation that is going on: the answer got lost.
		c.refresh(now, m)
		c.say(in.token, c.joined(m))
	default:
		c.update(m, in)
		c.await(m, in.token)
		if c.state == Preparing {
			c.tryCompleteJoin(now)
		} else {
			c.prepare(now)
		}
	}
}

// acceptable judges a join without looking at who sends it.
func (c *core) acceptable(r JoinRequest) Code {
	switch {
	case r.SessionTimeout < c.opts.MinSession || r.SessionTimeout > c.opts.MaxSession:
		return InvalidSessionTimeout
	case r.ProtocolType == "" || len(r.Protocols) == 0:
		return InconsistentProtocol
	case r.Bytes() > c.opts.MaxMemberBytes:
		return GroupMaxSizeReached
	}
	if len(c.members) == 0 || len(c.members) == 1 && c.members[r.MemberID] != nil {
		return 0
	}
	if r.ProtocolType != c.protocolType {
		return InconsistentProtocol
	}
	for _, p := range r.Protocols {
		if c.supported(p.Name, r.MemberID) {
			return 0
		}
	}
	return InconsistentProtocol
}

// supported says whether every member but one knows a protocol.
func (c *core) supported(name, except string) bool {
	for _, m := range c.members {
		if m.id != except && !slices.ContainsFunc(m.protocols, func(p Protocol) bool { return p.Name == name }) {
			return false
		}
	}
	return true
}

// joinNew is a join without a member id.
func (c *core) joinNew(now time.Time, in joinInput) {
	if in.Instance != "" {
		if old, ok := c.static[in.Instance]; ok {
			c.replace(now, in, c.members[old])
			return
		}
	}
	if len(c.members)+len(c.pending) >= c.opts.MaxMembers {
		c.say(in.token, JoinResponse{Code: GroupMaxSizeReached, Generation: -1})
		return
	}
	id := c.opts.NewMemberID(in.ClientID, in.Instance)
	if in.Instance == "" && in.RequireMemberID {
		c.pending[id] = now.Add(in.SessionTimeout)
		c.say(in.token, JoinResponse{Code: MemberIDRequired, MemberID: id, Generation: -1})
		return
	}
	c.add(now, in, id)
}

// add makes a member of a join and starts or extends a rebalance.
func (c *core) add(now time.Time, in joinInput, id string) {
	m := &member{id: id, instance: in.Instance, order: c.nextOrder}
	c.nextOrder++
	c.changedAt = now
	wasEmpty := len(c.members) == 0
	c.members[id] = m
	if in.Instance != "" {
		c.static[in.Instance] = id
	}
	if wasEmpty {
		c.protocolType = in.ProtocolType
	}
	c.update(m, in)
	c.await(m, in.token)
	switch {
	case c.state == Empty:
		c.state, c.initial = Preparing, true
		c.deadline = now.Add(min(c.opts.InitialDelay, m.rebalance))
		c.resetJoined()
		m.joined = true
		if c.opts.InitialDelay <= 0 {
			c.completeJoin(now)
		}
	case c.state == Preparing:
		c.tryCompleteJoin(now)
	default:
		c.prepare(now)
	}
}

// replace gives a static member that came back its place under a new id and fences the old one. A
// group that is stable stays so if the chosen protocol would not change.
func (c *core) replace(now time.Time, in joinInput, old *member) {
	id := c.opts.NewMemberID(in.ClientID, in.Instance)
	if old.join != 0 {
		c.say(old.join, JoinResponse{Code: FencedInstanceID, MemberID: old.id, Generation: -1})
	}
	if old.sync != 0 {
		c.say(old.sync, SyncResponse{Code: FencedInstanceID})
	}
	m := &member{
		id: id, instance: in.Instance, order: old.order, assignment: old.assignment,
		joined: old.joined, synced: old.synced,
	}
	delete(c.members, old.id)
	c.members[id] = m
	c.static[in.Instance] = id
	c.update(m, in)
	c.refresh(now, m)
	oldLeader := c.leader
	if c.leader == old.id {
		c.leader = id
	}
	switch c.state {
	case Stable:
		if c.choose() == c.protocol {
			r := c.joined(m)
			switch {
			case c.leader != id:
			case in.SkipAssignment:
				r.Skip = true
			default: // it must not take itself for the leader: its assignment would not be asked for
				r.Leader, r.Members = oldLeader, nil
			}
			c.say(in.token, r)
			return
		}
		c.await(m, in.token)
		c.prepare(now)
	case Preparing:
		c.await(m, in.token)
		c.tryCompleteJoin(now)
	default:
		c.await(m, in.token)
		c.prepare(now)
	}
}

func (c *core) update(m *member, in joinInput) {
	m.clientID, m.host = in.ClientID, in.Host
	m.session, m.rebalance = in.SessionTimeout, in.RebalanceTimeout
	if m.rebalance <= 0 {
		m.rebalance = m.session
	}
	m.protocols, m.supportsSkipping = in.Protocols, in.SkipAssignment
}

// await parks a join. An older one of the same member, whose client gave up, is answered first.
func (c *core) await(m *member, t token) {
	if m.join != 0 {
		c.say(m.join, JoinResponse{Code: RebalanceInProgress, MemberID: m.id, Generation: -1})
	}
	m.join, m.joined = t, true
}

func (c *core) refresh(now time.Time, m *member) { m.expires = now.Add(m.session) }

func (c *core) resetJoined() {
	for _, m := range c.members {
		m.joined, m.synced = m.join != 0, false
	}
}

// prepare starts a rebalance, or decides at once if nobody is missing.
func (c *core) prepare(now time.Time) {
	for _, m := range c.ordered() {
		if m.sync != 0 {
			c.say(m.sync, SyncResponse{Code: RebalanceInProgress})
			m.sync = 0
			c.refresh(now, m)
		}
		if c.state == Completing {
			m.assignment = nil
		}
	}
	c.state, c.initial = Preparing, false
	c.resetJoined()
	longest := time.Duration(0)
	for _, m := range c.members {
		longest = max(longest, m.rebalance)
	}
	c.deadline = now.Add(longest)
	c.tryCompleteJoin(now)
}

// membershipChanged follows a removal.
func (c *core) membershipChanged(now time.Time) {
	c.changedAt = now
	switch c.state {
	case Stable, Completing:
		c.prepare(now)
	case Preparing:
		c.tryCompleteJoin(now)
	}
}

func (c *core) tryCompleteJoin(now time.Time) {
	if c.initial && now.Before(c.deadline) && len(c.members) > 0 {
		return
	}
	if len(c.pending) > 0 && len(c.members) > 0 {
		return // somebody was told its id a moment ago and is about to join
	}
	for _, m := range c.members {
		if !m.joined {
			return
		}
	}
	c.completeJoin(now)
}

// completeJoin ends the joining phase: the next generation has the members that came.
func (c *core) completeJoin(now time.Time) {
	for _, m := range c.ordered() {
		if !m.joined && m.instance == "" {
			c.remove(now, m, UnknownMemberID)
		}
	}
	c.initial = false
	c.generation++
	if len(c.members) == 0 {
		c.state, c.protocol, c.leader, c.protocolType = Empty, "", "", ""
		return
	}
	members := c.ordered()
	if l := c.members[c.leader]; l == nil || !l.joined {
		i := slices.IndexFunc(members, func(m *member) bool { return m.joined })
		if i < 0 { // only static members, none of them back: wait another round
			c.generation--
			c.deadline = now.Add(members[0].rebalance)
			return
		}
		c.leader = members[i].id
	}
	c.protocol = c.choose()
	c.state = Completing
	longest := time.Duration(0)
	for _, m := range members {
		m.synced = !m.joined // an absent static member has nothing to sync; its session decides
		longest = max(longest, m.rebalance)
	}
	c.deadline = now.Add(longest)
	for _, m := range members {
		if m.join != 0 {
			c.say(m.join, c.joined(m))
			m.join = 0
			c.refresh(now, m)
		}
	}
}

// choose picks the protocol that all know and most prefer; the leader's order breaks ties.
func (c *core) choose() string {
	votes := map[string]int{}
	for _, m := range c.members {
		for _, p := range m.protocols {
			if c.supported(p.Name, "") {
				votes[p.Name]++
				break
			}
		}
	}
	judge := c.members[c.leader]
	if judge == nil {
		judge = c.ordered()[0]
	}
	best := ""
	for _, p := range judge.protocols {
		if c.supported(p.Name, "") && (best == "" || votes[p.Name] > votes[best]) {
			best = p.Name
		}
	}
	return best
}

// joined is the answer to a join in the current generation.
func (c *core) joined(m *member) JoinResponse {
	r := JoinResponse{
		Generation: c.generation, ProtocolType: c.protocolType, Protocol: c.protocol,
		Leader: c.leader, MemberID: m.id,
	}
	if m.id != c.leader {
		return r
	}
	for _, o := range c.ordered() {
		j := JoinedMember{ID: o.id, Instance: o.instance}
		for _, p := range o.protocols {
			if p.Name == c.protocol {
				j.Metadata = p.Metadata
			}
		}
		r.Members = append(r.Members, j)
	}
	return r
}

func sameProtocols(a, b []Protocol) bool {
	return slices.EqualFunc(a, b, func(p, q Protocol) bool { return p.Name == q.Name && bytes.Equal(p.Metadata, q.Metadata) })
}

// sync, heartbeat, leave, commit

// who finds a member by its id, instance and generation.
func (c *core) who(in Member) (*member, Code) {
	if in.Instance != "" {
		if id, ok := c.static[in.Instance]; ok && id != in.MemberID {
			return nil, FencedInstanceID
		}
	}
	m, ok := c.members[in.MemberID]
	switch {
	case !ok:
		return nil, UnknownMemberID
	case in.Generation != c.generation:
		return m, IllegalGeneration
	}
	return m, 0
}

func (c *core) sync(now time.Time, in syncInput) {
	m, code := c.who(in.Member)
	switch {
	case code != 0:
	case in.ProtocolType != "" && in.ProtocolType != c.protocolType, in.Protocol != "" && in.Protocol != c.protocol:
		code = InconsistentProtocol
	case c.state == Preparing:
		code = RebalanceInProgress
	}
	if code != 0 {
		c.say(in.token, SyncResponse{Code: code})
		return
	}
	c.refresh(now, m)
	if c.state == Stable {
		c.say(in.token, c.synced(m))
		return
	}
	if m.sync != 0 {
		c.say(m.sync, SyncResponse{Code: RebalanceInProgress})
	}
	m.sync, m.synced = in.token, true
	if m.id != c.leader {
		return
	}
	for _, o := range c.members {
		o.assignment = nil
	}
	for _, a := range in.Assignments {
		if o := c.members[a.MemberID]; o != nil {
			o.assignment = a.Assignment
		}
	}
	c.state = Stable
	for _, o := range c.ordered() {
		if o.sync != 0 {
			c.say(o.sync, c.synced(o))
			o.sync = 0
			c.refresh(now, o)
		}
	}
}

func (c *core) synced(m *member) SyncResponse {
	return SyncResponse{ProtocolType: c.protocolType, Protocol: c.protocol, Assignment: m.assignment}
}

func (c *core) heartbeat(now time.Time, in Member) Code {
	m, code := c.who(in)
	if code != 0 {
		return code
	}
	c.refresh(now, m)
	if c.state == Preparing {
		return RebalanceInProgress
	}
	return 0
}

func (c *core) leave(now time.Time, in leaveInput) {
	codes := make([]Code, len(in.members))
	changed := false
	for i, l := range in.members {
		id := l.MemberID
		if l.Instance != "" {
			known, ok := c.static[l.Instance]
			switch {
			case !ok:
				codes[i] = UnknownMemberID
				continue
			case id != "" && id != known:
				codes[i] = FencedInstanceID
				continue
			}
			id = known
		}
		if _, ok := c.pending[id]; ok {
			delete(c.pending, id)
			changed = true
			continue
		}
		m, ok := c.members[id]
		if !ok {
			codes[i] = UnknownMemberID
			continue
		}
		c.remove(now, m, UnknownMemberID)
		changed = true
	}
	if changed {
		c.membershipChanged(now)
	}
	c.say(in.token, codes)
}

// remove takes a member out and answers what it waits for.
func (c *core) remove(now time.Time, m *member, code Code) {
	if m.join != 0 {
		c.say(m.join, JoinResponse{Code: code, MemberID: m.id, Generation: -1})
		m.join = 0
	}
	if m.sync != 0 {
		c.say(m.sync, SyncResponse{Code: code})
		m.sync = 0
	}
	delete(c.members, m.id)
	if m.instance != "" && c.static[m.instance] == m.id {
		delete(c.static, m.instance)
	}
	c.changedAt = now
}

// mayCommit judges an offset commit. Without a generation it is a client that only stores offsets,
// which is allowed while nobody is a member.
func (c *core) mayCommit(now time.Time, in Member) Code {
	if in.Generation < 0 && in.MemberID == "" {
		if len(c.members) == 0 {
			return 0
		}
		return UnknownMemberID
	}
	m, code := c.who(in)
	if code != 0 {
		return code
	}
	c.refresh(now, m)
	if c.state == Completing {
		return RebalanceInProgress
	}
	return 0
}

// idle says whether the core holds nothing that cannot be made anew.
func (c *core) idle() bool { return c.state == Empty && len(c.members) == 0 && len(c.pending) == 0 }

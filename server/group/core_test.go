package group

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/golden"
)

// A story drives one core. Lines are commands; time stands still but for `wait`. Replies print as they
// come, with the request that they answer.
type story struct {
	core  *core
	now   time.Time
	names map[token]string
	last  token
	ids   int
	out   strings.Builder
}

func newStory(opts map[string]string) *story {
	s := &story{now: time.Unix(0, 0), names: map[token]string{}}
	o := Options{NewMemberID: func(client, instance string) string {
		s.ids++
		if instance != "" {
			client = instance
		}
		return fmt.Sprintf("%s.%d", client, s.ids)
	}}
	o.InitialDelay, _ = time.ParseDuration(opts["initial"])
	o.MaxMembers, _ = strconv.Atoi(opts["max"])
	s.core = newCore("g", o.withDefaults(), s.now)
	return s
}

func (s *story) feed(name string, in func(t token) any) {
	s.last++
	s.names[s.last] = name
	s.print(s.core.step(s.now, in(s.last)))
}

func (s *story) print(replies []reply) {
	for _, r := range replies {
		fmt.Fprintf(&s.out, "  %s: %s\n", s.names[r.token], show(r.value))
		delete(s.names, r.token)
	}
}

func show(v any) string {
	switch v := v.(type) {
	case JoinResponse:
		if v.Code != 0 {
			return strings.TrimSpace(fmt.Sprintf("%s %s", codeName(v.Code), v.MemberID))
		}
		s := fmt.Sprintf("joined %s generation %d protocol %s leader %s", v.MemberID, v.Generation, v.Protocol, v.Leader)
		if v.Skip {
			s += " skip"
		}
		for _, m := range v.Members {
			s += fmt.Sprintf(" [%s %s]", m.ID, m.Metadata)
		}
		return s
	case SyncResponse:
		if v.Code != 0 {
			return codeName(v.Code)
		}
		return fmt.Sprintf("assigned %q", v.Assignment)
	case Code:
		return codeName(v)
	case []Code:
		var all []string
		for _, c := range v {
			all = append(all, codeName(c))
		}
		return strings.Join(all, " ")
	}
	return fmt.Sprint(v)
}

func codeName(c Code) string {
	names := map[Code]string{
		0: "ok", NotAvailable: "NOT_AVAILABLE", IllegalGeneration: "ILLEGAL_GENERATION", InconsistentProtocol: "INCONSISTENT_PROTOCOL",
		UnknownMemberID: "UNKNOWN_MEMBER_ID", InvalidSessionTimeout: "INVALID_SESSION_TIMEOUT", RebalanceInProgress: "REBALANCE_IN_PROGRESS",
		MemberIDRequired: "MEMBER_ID_REQUIRED", GroupMaxSizeReached: "GROUP_MAX_SIZE_REACHED", FencedInstanceID: "FENCED_INSTANCE_ID",
	}
	return names[c]
}

// run carries out one line.
func (s *story) run(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	args := map[string]string{}
	for _, f := range strings.Fields(rest) {
		k, v, _ := strings.Cut(f, "=")
		args[k] = v
	}
	dur := func(k, def string) time.Duration {
		v := args[k]
		if v == "" {
			v = def
		}
		d, err := time.ParseDuration(v)
		if err != nil {
			panic(err)
		}
		return d
	}
	m := Member{MemberID: args["id"], Instance: args["instance"], Generation: s.core.generation}
	if g := args["gen"]; g != "" {
		n, _ := strconv.Atoi(g)
		m.Generation = int32(n)
	}
	switch verb {
	case "join":
		r := JoinRequest{
			MemberID: args["id"], Instance: args["instance"], ClientID: args["client"], ProtocolType: "consumer",
			SessionTimeout: dur("session", "10s"), RebalanceTimeout: dur("rebalance", "60s"),
			RequireMemberID: args["old"] == "", SkipAssignment: args["skip"] != "",
		}
		if t := args["type"]; t != "" {
			r.ProtocolType = t
		}
		protocols := args["protocols"]
		if protocols == "" {
			protocols = "range:m"
		}
		for _, p := range strings.Split(protocols, ",") {
			name, meta, _ := strings.Cut(p, ":")
			r.Protocols = append(r.Protocols, Protocol{Name: name, Metadata: []byte(meta)})
		}
		s.feed(line, func(t token) any { return joinInput{t, r} })
	case "sync":
		r := SyncRequest{Member: m, Protocol: args["protocol"]}
		for _, a := range strings.FieldsFunc(args["assign"], func(r rune) bool { return r == ',' }) {
			id, what, _ := strings.Cut(a, ":")
			r.Assignments = append(r.Assignments, Assignment{id, []byte(what)})
		}
		s.feed(line, func(t token) any { return syncInput{t, r} })
	case "heartbeat":
		s.feed(line, func(t token) any { return heartbeatInput{t, m} })
	case "commit":
		s.feed(line, func(t token) any { return commitInput{t, m} })
	case "leave":
		s.feed(line, func(t token) any { return leaveInput{t, []Leaver{{args["id"], args["instance"]}}} })
	case "wait":
		end := s.now.Add(dur("for", "0s"))
		for {
			next := s.core.next()
			if next.IsZero() || next.After(end) {
				break
			}
			s.now = next
			before := s.out.Len()
			replies := s.core.step(s.now, tickInput{})
			if len(replies) > 0 {
				fmt.Fprintf(&s.out, "  at %v\n", s.now.Sub(time.Unix(0, 0)))
			}
			s.print(replies)
			if s.out.Len() == before && s.core.next().Equal(next) {
				panic("the core asks for a tick that changes nothing")
			}
		}
		s.now = end
	case "show":
		fmt.Fprintf(&s.out, "  %s generation %d protocol %q leader %q members", s.core.state, s.core.generation, s.core.protocol, s.core.leader)
		for _, m := range s.core.ordered() {
			fmt.Fprintf(&s.out, " %s", m.id)
		}
		s.out.WriteString("\n")
	default:
		panic("unknown command " + verb)
	}
}

func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no stories", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			s := newStory(nil)
			for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
				switch {
				case strings.HasPrefix(line, "  "):
					continue // output of an earlier run
				case line == "" || strings.HasPrefix(line, "#"):
					out.WriteString(line + "\n")
					continue
				}
				out.WriteString(line + "\n")
				if rest, ok := strings.CutPrefix(line, "new"); ok {
					opts := map[string]string{}
					for _, f := range strings.Fields(rest) {
						k, v, _ := strings.Cut(f, "=")
						opts[k] = v
					}
					s = newStory(opts)
					continue
				}
				s.out.Reset()
				s.run(line)
				out.WriteString(s.out.String())
			}
			golden.Check(t, file, out.String())
		})
	}
}

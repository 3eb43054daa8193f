package group

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func joinRequest(id, client string) JoinRequest {
	return JoinRequest{
		MemberID: id, ClientID: client, SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
		ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}},
	}
}

func TestParkedJoinsWakeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{InitialDelay: 3 * time.Second})
		defer c.Close()
		var wg sync.WaitGroup
		begin := time.Now()
		out := make([]JoinResponse, 100)
		for i := range out {
			wg.Go(func() { out[i] = c.Join(t.Context(), "g", joinRequest("", fmt.Sprint(i))) })
		}
		wg.Wait()
		if d := time.Since(begin); d != 3*time.Second {
			t.Errorf("the group formed after %v", d)
		}
		leaders := 0
		for _, r := range out {
			if r.Code != 0 || r.Generation != 1 {
				t.Fatalf("%+v", r)
			}
			if r.Leader == r.MemberID {
				leaders++
				if len(r.Members) != 100 {
					t.Errorf("the leader sees %d members", len(r.Members))
				}
			}
		}
		if leaders != 1 {
			t.Errorf("%d leaders", leaders)
		}
	})
}

func TestSilentMembersExpireAndTheGroupIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		defer c.Close()
		r := c.Join(t.Context(), "g", joinRequest("", "a"))
		m := Member{MemberID: r.MemberID, Generation: r.Generation}
		if s := c.Sync(t.Context(), "g", SyncRequest{Member: m, Assignments: []Assignment{{r.MemberID, []byte("x")}}}); string(s.Assignment) != "x" {
			t.Fatalf("%+v", s)
		}
		for range 5 {
			time.Sleep(9 * time.Second)
			if code := c.Heartbeat(t.Context(), "g", m); code != 0 {
				t.Fatalf("heartbeat: %d", code)
			}
		}
		time.Sleep(10*time.Second + 1)
		synctest.Wait()
		if code := c.Heartbeat(t.Context(), "g", m); code != UnknownMemberID {
			t.Errorf("after the session: %d", code)
		}
		if names := c.List(); len(names) != 0 {
			t.Errorf("groups left: %v", names)
		}
	})
}

func TestCloseAndCancelWakeParkedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{InitialDelay: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if r := c.Join(ctx, "g", joinRequest("", "a")); r.Code != NotAvailable {
				t.Errorf("canceled: %+v", r)
			}
		})
		wg.Go(func() {
			if r := c.Join(t.Context(), "h", joinRequest("", "b")); r.Code != NotAvailable {
				t.Errorf("closed: %+v", r)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		c.Close()
		wg.Wait()
		if code := c.Heartbeat(t.Context(), "g", Member{MemberID: "a", Generation: 1}); code != NotAvailable {
			t.Errorf("after Close: %d", code)
		}
		if code := c.Commit(t.Context(), "g", Member{Generation: -1}); code != NotAvailable {
			t.Errorf("commit after Close: %d", code)
		}
	})
}

func TestGroupsAreBounded(t *testing.T) {
	c := New(Options{MaxGroups: 2, MaxMemberBytes: 10})
	defer c.Close()
	for i := range 3 {
		r := c.Join(t.Context(), fmt.Sprint(i), joinRequest("", "a"))
		if (r.Code == 0) != (i < 2) {
			t.Errorf("group %d: %+v", i, r)
		}
	}
	r := joinRequest("", "b")
	r.Protocols[0].Metadata = make([]byte, 11)
	if r := c.Join(t.Context(), "0", r); r.Code != GroupMaxSizeReached {
		t.Errorf("large metadata: %+v", r)
	}
	if r := c.Join(t.Context(), "", joinRequest("", "a")); r.Code != InvalidGroupID {
		t.Errorf("no name: %+v", r)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/headrace/headrace/client"
)

// patience is how long a command waits before it says what for: a little longer than a server whose disk is full takes to
// refuse.
const patience = 1500 * time.Millisecond

// watch says on standard error when a publisher's records wait to be acknowledged, why, and when they no longer do. It
// ends with the returned function.
func (a *app) watch(ctx context.Context, p *client.Publisher, timeout time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		w := stall{since: time.Now()}
		tick := time.NewTicker(patience / 10)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				switch w.step(now, p.Stats()) {
				case stallBegins:
					fmt.Fprintf(a.err, "waiting: %s; records are sent again, for %v at most (--timeout)\n", a.whyWaiting(ctx, p), timeout)
				case stallEnds:
					fmt.Fprintln(a.err, "records are acknowledged again")
				case stallGoesOn:
				}
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// A stall decides when nothing has been acknowledged for too long.
type stall struct {
	since time.Time // nothing was acknowledged, while records waited
	ended int64     // records that had ended then
	said  bool
}

type stallChange int

const (
	stallGoesOn stallChange = iota // nothing new
	stallBegins
	stallEnds
)

// step takes the numbers of a moment.
func (w *stall) step(now time.Time, s client.PublishStats) stallChange {
	ended := s.Acknowledged + s.Failed
	if moved := ended != w.ended; moved || ended == s.Sent {
		said := w.said && s.Acknowledged > 0 && moved
		*w = stall{since: now, ended: ended}
		if said && s.Failed == 0 {
			return stallEnds
		}
		return stallGoesOn
	}
	if w.said || now.Sub(w.since) < patience {
		return stallGoesOn
	}
	w.said = true
	return stallBegins
}

// whyWaiting is why records are not acknowledged: what the server said to the last attempt, or what it says of itself.
func (a *app) whyWaiting(ctx context.Context, p *client.Publisher) string {
	if trouble := p.Stats().Trouble; trouble != nil {
		var wire *client.WireError
		if errors.As(trouble, &wire) && wire.Code != "" {
			f := wireFailure(wire)
			return f.code + " " + f.what
		}
		return trouble.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := client.NewAPI(a.http).Status(ctx)
	switch {
	case err != nil:
		return "the server does not answer"
	case len(s.Reasons) > 0:
		return "the server is not ready: " + strings.Join(s.Reasons, "; ")
	}
	return "nothing was acknowledged for " + patience.String()
}

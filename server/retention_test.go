package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/server"
)

// A dial is a clock that stands still until it is turned.
type dial struct{ ns atomic.Int64 }

func newDial() *dial {
	d := &dial{}
	d.ns.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return d
}

func (d *dial) now() time.Time        { return time.Unix(0, d.ns.Load()) }
func (d *dial) turn(by time.Duration) { d.ns.Add(int64(by)) }
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestOffsetsOfUnusedGroupsExpire(t *testing.T) {
	d := newDial()
	o := options(fsx.NewMem())
	o.Now, o.OffsetsRetention = d.now, 800*time.Millisecond // of the dial's time
	s := start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if status, body := call(t, s, "POST", "/api/v1/topics", `{"name":"t"}`); status != 201 {
		t.Fatal(status, body)
	}
	c := client(t, s, kgo.DefaultProduceTopic("t"))
	adm := kadm.NewClient(c)
	commit := func(s *server.Server, group string) {
		t.Helper()
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: "t", At: 1})
		if err := kadm.NewClient(client(t, s)).CommitAllOffsets(ctx, group, offsets); err != nil {
			t.Fatal(err)
		}
	}
	commit(s, "unused")
	if err := c.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	member := client(t, s, kgo.ConsumeTopics("t"), kgo.ConsumerGroup("used"), kgo.SessionTimeout(10*time.Second))
	if fs := member.PollFetches(ctx); fs.Err() != nil || fs.NumRecords() != 1 {
		t.Fatal(fs.Err(), fs.NumRecords())
	}
	if err := member.CommitUncommittedOffsets(ctx); err != nil {
		t.Fatal(err)
	}
	d.turn(10 * time.Second)
	eventually(t, "the group that nobody uses is gone", func() bool { return !s.Broker().HasGroup("unused") })
	active := func() int64 {
		at, _ := s.Node().Store().GroupActive("used")
		return at
	}
	eventually(t, "the group with a member is in use", func() bool { return active() == d.ns.Load() })
	if !s.Broker().HasGroup("used") {
		t.Error("a group with a member has expired")
	}
	d.turn(30 * time.Millisecond) // less than what it is told again for
	member.Close()
	eventually(t, "its time begins when the last member leaves", func() bool { return active() == d.ns.Load() })
	if groups, err := adm.ListGroups(ctx); err != nil || len(groups) != 1 {
		t.Error(groups, err)
	}
	commit(s, "other")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// Nothing expires right after a start, however long the server was away: members come back first.
	d.turn(time.Hour)
	s = start(t, o)
	for range 3 {
		time.Sleep(60 * time.Millisecond) // a look at the groups
		if !s.Broker().HasGroup("used") || !s.Broker().HasGroup("other") {
			t.Fatal("expired before anybody could come back")
		}
	}
	commit(s, "other")
	d.turn(700 * time.Millisecond)
	commit(s, "other")
	d.turn(700 * time.Millisecond)
	eventually(t, "the unused group is gone", func() bool { return !s.Broker().HasGroup("used") })
	if !s.Broker().HasGroup("other") {
		t.Error("a group that commits has expired")
	}
}

const held = `
topic orders {
  order_id: string,
  amount: float64,
} with key (order_id), format json, retain 1m

topic big = from orders
  |> where amount > 100

view wanted = from orders
  |> where amount > 100
`

// Retention waits for a group that reads a view and for a pipeline that stands still, until a cap says otherwise; then both
// are told.
func TestConsumersHoldRetentionUpToTheCaps(t *testing.T) {
	d := newDial()
	o := options(fsx.NewMem())
	o.Now, o.Node.RetentionEvery = d.now, 10*time.Millisecond
	s := start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if status, body := call(t, s, "PUT", "/api/v1/modules/shop", held); status != 200 {
		t.Fatal(status, body)
	}
	c := client(t, s, kgo.DefaultProduceTopic("orders"))
	adm := kadm.NewClient(c)
	topic, _ := s.Node().Meta().Catalog().Topic("orders")
	part, _ := s.Node().Store().Partition(log.PartitionID{Topic: topic.ID})
	produce := func(n int) {
		t.Helper()
		for range n {
			if err := c.ProduceSync(ctx, kgo.StringRecord(`{"order_id":"a","amount":200}`)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			if err := s.Node().Store().Flush(ctx); err != nil { // a run of its own
				t.Fatal(err)
			}
		}
	}
	alter := func(name, value string) {
		t.Helper()
		rs, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, "orders")
		if err != nil || rs[0].Err != nil {
			t.Fatal(rs, err)
		}
	}
	pipeline := func(what string) bool {
		_, body := call(t, s, "GET", "/api/v1/pipelines/shop/big", "")
		return strings.Contains(body, what)
	}
	starts := func(want int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("the log starts at %d, not %d", want, part.LogStart()), func() bool { return part.LogStart() == want })
	}
	for _, c := range []struct{ topic, name, code string }{
		{"big", "max.message.bytes", "E1043"}, {"big", "retention.ms", ""}, {"wanted", "retention.ms", "E1009"},
	} {
		if _, body := call(t, s, "PATCH", "/api/v1/topics/"+c.topic, `{"set":{"`+c.name+`":"5000000"}}`); c.code == "" && !strings.Contains(body, `"changed":[{`) || c.code != "" && !strings.Contains(body, c.code) {
			t.Errorf("%s of %s: %s, want %s", c.name, c.topic, body, c.code)
		}
	}
	alter("headrace.retention.consumers", "pipelines,groups")
	produce(4)
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: "wanted", At: 2})
	if err := adm.CommitAllOffsets(ctx, "viewers", offsets); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipeline has read all", func() bool { return pipeline(`"lag":0`) })
	d.turn(time.Hour)
	starts(2)
	// The declared retention is a setting like others.
	if status, body := call(t, s, "GET", "/api/v1/topics/orders", ""); status != 200 || !strings.Contains(body, `"name":"retention.ms","value":"60000"`) {
		t.Errorf("%d %s", status, body)
	}
	_, body := call(t, s, "PATCH", "/api/v1/topics/orders", `{"set":{"headrace.retention.max.ms":"1800000"},"dry_run":true}`)
	if !strings.Contains(body, `"deletes":{"records":2,`) || !strings.Contains(body, `"held":0}`) {
		t.Errorf("preview: %s", body)
	}

	// The pipeline stands still, and the group as well.
	if status, body := call(t, s, "POST", "/api/v1/modules/shop/big/stop", ""); status != 200 {
		t.Fatal(status, body)
	}
	produce(3)
	d.turn(20 * time.Minute)
	produce(3)
	alter("headrace.retention.max.ms", "1800000")
	starts(4) // what is older than half an hour
	d.turn(15 * time.Minute)
	starts(7)                                                                                                  // the cap takes from the pipeline too, which needs 4 and on
	eventually(t, "what the cap took is counted", func() bool { return s.Node().Retention().CutRecords == 3 }) // after it is gone
	if _, body := call(t, s, "GET", "/metrics", ""); !strings.Contains(body, "headrace_retention_cut_records_total 3") {
		t.Error("the metrics do not tell")
	}
	resume := func() {
		t.Helper()
		if status, body := call(t, s, "POST", "/api/v1/modules/shop/big/resume", ""); status != 200 {
			t.Fatal(status, body)
		}
	}
	resume()
	eventually(t, "the pipeline says what it lacks", func() bool {
		return pipeline(`"state":"paused"`) && pipeline("offsets 4 to 6 of partition 0 were deleted before they were read")
	})
	resume()
	eventually(t, "the pipeline goes on", func() bool { return pipeline(`"lag":0`) && pipeline(`"skipped":3`) && pipeline(`"state":"running"`) })

	// A consumer whose offset is gone begins where its policy says.
	r := client(t, s, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: kgo.NewOffset().At(2)}}), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if fs := r.PollFetches(ctx); fs.NumRecords() == 0 || fs.Records()[0].Offset != 7 {
		t.Errorf("%d records, %v", fs.NumRecords(), fs.Err())
	}
}

const quietTopic = `
topic quiet {
  id: string,
  ts: time,
} with key (id), format json, time ts lag 10ms idle 40ms, retain 1s

topic counts = from quiet
  |> agg n = count() by id window tumble(1h)
`

// A topic without rows gets a time mark now and then for ever; retention bounds them, and the pipeline that reads them does
// not miss those that have gone.
func TestRetentionBoundsTimeMarks(t *testing.T) {
	d := newDial()
	o := options(fsx.NewMem())
	o.Now, o.Node.RetentionEvery = d.now, 5*time.Millisecond
	s := start(t, o)
	if status, body := call(t, s, "PUT", "/api/v1/modules/m", quietTopic); status != 200 {
		t.Fatal(status, body)
	}
	c := client(t, s, kgo.DefaultProduceTopic("quiet"))
	row := fmt.Sprintf(`{"id":"a","ts":%q}`, d.now().UTC().Format(time.RFC3339Nano))
	if err := c.ProduceSync(t.Context(), kgo.StringRecord(row)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	topic, _ := s.Node().Meta().Catalog().Topic("quiet")
	part, _ := s.Node().Store().Partition(log.PartitionID{Topic: topic.ID})
	for range 60 {
		end := part.LogEnd()
		eventually(t, "another time mark", func() bool {
			d.turn(50 * time.Millisecond)
			return part.LogEnd() > end
		})
		if err := s.Node().Store().Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "marks of a second are kept", func() bool { return part.LogEnd()-part.LogStart() <= 25 })
	eventually(t, "the pipeline has read them", func() bool {
		_, body := call(t, s, "GET", "/api/v1/pipelines/m/counts", "")
		return strings.Contains(body, `"state":"running"`) && strings.Contains(body, `"lag":0`) && strings.Contains(body, `"skipped":0`)
	})
}

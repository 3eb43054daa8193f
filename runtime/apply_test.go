package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/runtime"
)

// changes renders a plan difference: "topic:change ...".
func changes(res *runtime.ApplyResult) string {
	var out []string
	for _, c := range res.Plan {
		out = append(out, strings.TrimPrefix(c.Pipeline, "m/")+":"+string(c.Change))
	}
	return strings.Join(out, " ")
}

const (
	bigV1   = "topic big = from pay |> where amount > 10\n"
	bigV2   = "topic big = from pay |> where amount > 20\n"
	chainV1 = "topic chain = from big |> set twice = amount * 2\n"
	sumsV1  = "topic sums = from pay |> agg n = count() by card window tumble(10s)\n"
)

func fill(r *rig) {
	r.put("pay", 0, payment(1000, "a", "x", 5), payment(2000, "a", "x", 15), payment(3000, "a", "x", 25))
	r.put("pay", 1, payment(1500, "b", "x", 30))
}

func TestApplySaysWhatItChangesAndKeepsWhatIsTheSame(t *testing.T) {
	r := newRig(t, runtime.Options{})
	if got := changes(r.apply("m", pay+bigV1+chainV1)); got != "big:extend chain:extend" {
		t.Errorf("first: %s", got)
	}
	fill(r)
	r.wait("rows", func() bool { return len(r.rows("chain", 0)) == 2 && len(r.rows("chain", 1)) == 1 })
	id := r.topic("big").ID
	res := r.apply("m", pay+bigV1+chainV1)
	if got := changes(res); got != "big:same chain:same" || res.Version != 1 {
		t.Errorf("again: %s version %d", got, res.Version)
	}
	if got := changes(r.apply("m", "// a comment\n"+pay+bigV1+chainV1+sumsV1)); got != "big:same chain:same sums:extend" {
		t.Errorf("one more: %s", got)
	}
	if r.topic("big").ID != id {
		t.Error("a topic that is the same was made anew")
	}
	r.caughtUp("m/big", "m/chain", "m/sums")
	if n := r.status("m/big").Counters.In; n != 4 {
		t.Errorf("big has read %d rows, want 4", n)
	}
	// A change upstream computes what reads it again, too.
	dry, err := r.eng.Apply(ctxOf(t), "m", pay+bigV2+chainV1+sumsV1, runtime.ApplyOptions{DryRun: true})
	if err != nil || changes(dry) != "big:rebuild chain:rebuild sums:same" {
		t.Errorf("dry run: %s, %v", changes(dry), err)
	}
	if r.topic("big").ID != id {
		t.Error("a dry run changed something")
	}
	if got := changes(r.apply("m", pay+bigV2+chainV1+sumsV1)); got != "big:rebuild chain:rebuild sums:same" {
		t.Errorf("rebuild: %s", got)
	}
	r.wait("rebuilt rows", func() bool { return len(r.rows("chain", 0)) == 1 && len(r.rows("chain", 1)) == 1 })
	r.reopen()
	r.caughtUp("m/big", "m/chain", "m/sums")
	if n := len(r.rows("big", 0)) + len(r.rows("big", 1)); n != 2 {
		t.Errorf("%d rows after a restart, want 2", n)
	}
}

func TestApplyRefusesWhatBreaksReaders(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1+sumsV1)
	apply := func(name, text string, o runtime.ApplyOptions) (*runtime.ApplyResult, error) {
		return r.eng.Apply(ctxOf(t), name, text, o)
	}
	if res, err := apply("m", pay+sumsV1, runtime.ApplyOptions{}); !errors.Is(err, runtime.ErrBreaks) || changes(res) != "sums:same big:break" {
		t.Errorf("a pipeline that goes: %v %v", res, err)
	}
	if _, err := apply("m", strings.Replace(pay, "amount: int64", "amount: string", 1), runtime.ApplyOptions{AllowBreak: true}); !errors.Is(err, runtime.ErrBreaks) {
		t.Errorf("another schema of a topic: %v", err)
	}
	if _, err := apply("m", strings.Replace(pay, "partitions 2", "partitions 3", 1)+bigV1+sumsV1, runtime.ApplyOptions{}); !errors.Is(err, runtime.ErrBreaks) {
		t.Errorf("another number of partitions: %v", err)
	}
	var errs *dsl.Errors
	if _, err := apply("m", "topic x = from nowhere", runtime.ApplyOptions{}); !errors.As(err, &errs) {
		t.Errorf("a text that does not compile: %v", err)
	}
	if _, err := apply("../m", pay, runtime.ApplyOptions{}); !errors.Is(err, replication.ErrInvalidName) {
		t.Errorf("a bad name: %v", err)
	}
	for text, why := range map[string]string{
		pay + "topic big = from pay |> where amount > 1":                             "another module's derived topic",
		"topic big { a: string }":                                                    "a topic with the name of a derived one",
		"topic x { a: string } view big = from x":                                    "a view with the name of a derived topic",
		"topic x { a: string }\ntopic pay = from x with key (a)":                     "a derived topic with the name of a source",
		"topic y as \"x2\" { a: string }\ntopic x as \"pay\" = from y |> where true": "a derived topic with the Kafka name of a source",
	} {
		if _, err := apply("other", text, runtime.ApplyOptions{}); !errors.Is(err, runtime.ErrNameTaken) && !errors.As(err, &errs) {
			t.Errorf("%s: %v", why, err)
		}
	}
	if _, ok := r.node.Meta().Catalog().Module("other"); ok {
		t.Error("a refused module is stored")
	}
	r.apply("m2", pay+"topic small = from pay |> where amount < 10\nview v = from pay |> where amount > 1")
	if _, err := apply("m3", pay+"view v = from pay |> where amount > 2", runtime.ApplyOptions{}); !errors.Is(err, runtime.ErrNameTaken) {
		t.Errorf("another module's view: %v", err)
	}
	r.put("pay", 0, msg{1, "k", "no json"})
	r.caughtUp("m/big", "m2/small")
	r.wait("both modules write invalid rows", func() bool { return len(r.rows("pay_invalid", 0)) == 3 })
	if err := r.eng.Delete(ctxOf(t), "m"); err != nil {
		t.Fatal(err)
	}
	if len(r.rows("pay_invalid", 0)) != 3 {
		t.Error("a side topic that another module uses is gone")
	}
	if err := r.eng.Delete(ctxOf(t), "m2"); err != nil {
		t.Fatal(err)
	}
	if _, ok := r.node.Meta().Catalog().Topic("pay_invalid"); ok {
		t.Error("a side topic without writers stays")
	}
}

func TestModulesReadEachOthersTopics(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1)
	r.apply("reader", "topic copies = from big |> set half = amount / 2")
	fill(r)
	r.wait("copies", func() bool { return len(r.rows("copies", 0)) == 2 && len(r.rows("copies", 1)) == 1 })
	if err := r.eng.Delete(ctxOf(t), "m"); !errors.Is(err, runtime.ErrInUse) || !strings.Contains(err.Error(), "reader/copies") {
		t.Errorf("delete what is read: %v", err)
	}
	if err := r.eng.Delete(ctxOf(t), "m/big"); !errors.Is(err, runtime.ErrInUse) {
		t.Errorf("delete what is read: %v", err)
	}
	res, err := r.eng.Apply(ctxOf(t), "m", pay+sumsV1, runtime.ApplyOptions{DryRun: true})
	if err != nil || len(res.Plan) != 2 || !strings.Contains(res.Plan[1].Why, "under reader/copies") {
		t.Errorf("a pipeline goes that another module reads: %+v %v", res, err)
	}
	res, err = r.eng.Apply(ctxOf(t), "m", pay+bigV2, runtime.ApplyOptions{})
	if !errors.Is(err, runtime.ErrBreaks) {
		t.Errorf("empty what is read: %s %v", changes(res), err)
	}
	if _, err := r.eng.Apply(ctxOf(t), "m", pay+bigV2, runtime.ApplyOptions{AllowBreak: true}); err != nil {
		t.Fatal(err)
	}
	r.wait("the reader notices", func() bool { return r.status("reader/copies").State == runtime.StateFailed })
	if why := r.status("reader/copies").Reason; !strings.Contains(why, "apply the module again") {
		t.Errorf("reason: %s", why)
	}
	if got := changes(r.apply("reader", "topic copies = from big |> set half = amount / 2")); got != "reader/copies:rebuild" {
		t.Errorf("apply again: %s", got)
	}
	r.wait("copies", func() bool { return len(r.rows("copies", 0)) == 1 && len(r.rows("copies", 1)) == 1 })
	for _, name := range []string{"reader", "m"} {
		if err := r.eng.Delete(ctxOf(t), name); err != nil {
			t.Fatal(err)
		}
	}
	if tasks := r.node.Store().Tasks(); len(tasks) != 0 {
		t.Errorf("tasks of deleted modules: %v", tasks)
	}
	if len(r.rows("pay", 0)) != 3 {
		t.Error("a declared topic went with its module")
	}
}

func TestStopResumeAndDeleteHoldThroughRestarts(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1+sumsV1)
	fill(r)
	r.caughtUp("m/big", "m/sums")
	do := func(what string, f func(context.Context, string) error, name string) {
		t.Helper()
		if err := f(ctxOf(t), name); err != nil {
			t.Fatalf("%s %s: %v", what, name, err)
		}
	}
	states := func(want string) {
		t.Helper()
		for range 2 {
			got := fmt.Sprintf("%s %s", r.status("m/big").State, r.status("m/sums").State)
			got = strings.ReplaceAll(got, string(runtime.StateStarting), string(runtime.StateRunning))
			if got != want {
				t.Errorf("states %s, want %s", got, want)
			}
			r.reopen()
		}
	}
	do("stop", r.eng.Stop, "m/big")
	states("stopped running")
	fill(r)
	r.wait("sums goes on", func() bool { return r.status("m/sums").Counters.In == 8 })
	if n := len(r.rows("big", 0)); n != 2 {
		t.Errorf("a stopped pipeline wrote: %d rows", n)
	}
	if s := r.status("m/big"); s.Counters.In != 4 || s.Counters.Out != 3 || s.Lag != 4 || s.Step == 0 || len(s.Partitions) == 0 {
		t.Errorf("a stopped pipeline does not show where it stopped: %+v", s)
	}
	do("stop", r.eng.Stop, "m")
	states("stopped stopped")
	do("resume", r.eng.Resume, "m/big")
	states("running stopped")
	do("resume", r.eng.Resume, "m")
	r.caughtUp("m/big", "m/sums")
	states("running running")
	r.caughtUp("m/big", "m/sums")
	if n := len(r.rows("big", 0)); n != 4 {
		t.Errorf("big has %d rows, want 4", n)
	}
	do("delete", r.eng.Delete, "m/big")
	states("stopped running")
	if _, ok := r.node.Meta().Catalog().Topic("big"); ok {
		t.Error("the topic of a deleted pipeline stays")
	}
	if got := changes(r.apply("m", pay+bigV1+sumsV1)); got != "big:extend sums:same" {
		t.Errorf("apply after delete: %s", got)
	}
	r.wait("big anew", func() bool { return len(r.rows("big", 0)) == 4 })
	do("delete", r.eng.Delete, "m")
	r.reopen()
	if ms := r.eng.Modules(); len(ms) != 0 {
		t.Errorf("modules after delete: %+v", ms)
	}
	for _, f := range []func(context.Context, string) error{r.eng.Stop, r.eng.Resume, r.eng.Delete} {
		if err := f(ctxOf(t), "m"); !errors.Is(err, runtime.ErrUnknownModule) {
			t.Errorf("unknown module: %v", err)
		}
	}
	for _, row := range r.node.Meta().Catalog().Topics() {
		if row.Name != "pay" {
			t.Errorf("topic %s stays", row.Name)
		}
	}
}

// The catalogue is changed first; a crash before the change is carried out is healed by the next start.
func TestAChangeOfTheCatalogueAloneIsCarriedOutAtTheNextStart(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1+sumsV1)
	fill(r)
	r.caughtUp("m/big", "m/sums")
	row, _ := r.node.Meta().Catalog().Module("m")
	oldTask := row.Pipelines[0].Task

	// A rebuild of big and a deletion of sums, as far as the catalogue.
	next := *row
	next.Text = pay + bigV2
	next.Pipelines = []replication.PipelineRow{{Name: "m/big", Version: "v2", Task: log.TaskID{1, 2, 3}, State: "running"}}
	if _, err := r.node.Meta().PutModule(ctxOf(t), next, row.Version); err != nil {
		t.Fatal(err)
	}
	r.crash()
	r.caughtUp("m/big")
	if n := len(r.rows("big", 0)) + len(r.rows("big", 1)); n != 2 {
		t.Errorf("big: %s", r.all("big"))
	}
	if _, ok := r.node.Meta().Catalog().Topic("sums"); ok {
		t.Error("sums is not in the module any more, its topic is there")
	}
	if _, ok := r.node.Store().Task(oldTask); ok {
		t.Error("the old task is there")
	}

	// A module that was deleted in the catalogue only.
	if err := r.node.Meta().DeleteModule(ctxOf(t), "m", -1); err != nil {
		t.Fatal(err)
	}
	r.crash()
	if _, ok := r.node.Meta().Catalog().Topic("big"); ok || len(r.node.Store().Tasks()) != 0 {
		t.Error("a deleted module left its topic or task")
	}

	// A module that was only stored.
	if _, err := r.node.Meta().PutModule(ctxOf(t), replication.ModuleRow{
		Name: "m", Text: pay + bigV1, State: "running",
		Pipelines: []replication.PipelineRow{{Name: "m/big", Version: "v", Task: log.TaskID{9}, State: "running"}},
	}, 0); err != nil {
		t.Fatal(err)
	}
	r.crash()
	r.crash()
	r.caughtUp("m/big")
	if n := len(r.rows("big", 0)) + len(r.rows("big", 1)); n != 3 {
		t.Errorf("big: %s", r.all("big"))
	}
}

func TestAModuleThatCannotRunKeepsNothingElseFromRunning(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1)
	if _, err := r.node.Meta().PutModule(ctxOf(t), replication.ModuleRow{Name: "broken", Text: "topic ??", State: "running"}, 0); err != nil {
		t.Fatal(err)
	}
	r.reopen()
	fill(r)
	r.caughtUp("m/big")
	s, err := r.eng.Module("broken")
	if err != nil || s.State != string(runtime.StateFailed) || s.Reason == "" {
		t.Errorf("%+v %v", s, err)
	}
	if err := r.eng.Delete(ctxOf(t), "broken"); err != nil {
		t.Error(err)
	}
}

func TestParamsAreKept(t *testing.T) {
	r := newRig(t, runtime.Options{})
	text := "param least: int64 = 10\n" + pay + "topic big = from pay |> where amount > least"
	if _, err := r.eng.Apply(ctxOf(t), "m", text, runtime.ApplyOptions{Params: map[string]string{"least": "20"}}); err != nil {
		t.Fatal(err)
	}
	fill(r)
	r.reopen()
	r.caughtUp("m/big")
	if n := len(r.rows("big", 0)) + len(r.rows("big", 1)); n != 2 {
		t.Errorf("big: %s", r.all("big"))
	}
	if got := changes(r.apply("m", text)); got != "big:rebuild" {
		t.Errorf("without the param: %s", got)
	}
}

func TestRetentionOfADeclaredTopicFollowsTheModule(t *testing.T) {
	r := newRig(t, runtime.Options{})
	r.apply("m", pay+bigV1)
	if ms := r.topic("pay").Settings.RetentionMs; ms != -1 {
		t.Errorf("retention %d", ms)
	}
	if got := changes(r.apply("m", strings.Replace(pay, "partitions 2", "partitions 2, retain 2d", 1)+bigV1)); got != "big:same" {
		t.Errorf("change: %s", got)
	}
	if ms := r.topic("pay").Settings.RetentionMs; ms != 2*24*3600*1000 {
		t.Errorf("retention %d after the change", ms)
	}
}

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/log/wal"
	"github.com/headrace/headrace/replication"
)

func (a *app) debugCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "debug", Short: "Look into what a server keeps on its disk", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.debugLogCmd())
	return cmd
}

// debugLog are the flags of `debug log`.
type debugLog struct {
	dir              string
	topic            string
	partition        int32
	from, to         int64
	records, wal     bool
	verify           bool
	repair, loss, ok bool
}

func (a *app) debugLogCmd() *cobra.Command {
	var d debugLog
	cmd := &cobra.Command{
		Use: "log", Short: "Verify, dump and repair a data directory that no server has open", Args: cobra.NoArgs,
		Long: `Verify, dump and repair a data directory that no server has open.

Every file is read and gets a verdict: clean; torn, which the next start mends by itself and which loses nothing that was
acknowledged; or rotten, bytes that are no longer what was written, with the file, the byte and the offsets concerned.
Nothing is changed without --repair.

--repair makes damaged files anew out of what the others say and keeps the old ones with .bad behind their names: an index
from its segment, records and segments from the write-ahead log, the log behind a checkpoint. It refuses to lose
acknowledged records and says which would be lost; with --accept-loss it says so again, asks, and goes on.

The exit code is 0 for clean, 9 for torn, 10 for rotten.`,
		Example: `  headrace debug log --data ./data
  headrace debug log --data ./data --topic orders --partition 0 --from 100 --to 120 --records
  headrace debug log --data ./data --wal | less
  headrace debug log --data ./data --repair`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case d.loss && !d.repair:
				return usageError(cmd, "--accept-loss goes with --repair")
			case d.from > d.to:
				return usageError(cmd, fmt.Sprintf("--from %d is beyond --to %d", d.from, d.to))
			case (cmd.Flags().Changed("from") || cmd.Flags().Changed("to")) && !d.records && !d.wal:
				return usageError(cmd, "--from and --to choose what --records or --wal prints: give one of these")
			case d.partition < -1:
				return usageError(cmd, fmt.Sprintf("--partition %d: want a number from 0, or -1 for all", d.partition))
			case d.records && !d.verify:
				return usageError(cmd, "--records reads every batch, so --verify=false does not go with it")
			}
			if d.repair {
				if err := a.debugRepair(cmd, &d); err != nil {
					return err
				}
			}
			return a.debugInspect(&d)
		},
	}
	a.outputFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&d.dir, "data", env("HEADRACE_DATA_DIR", "./headrace-data"), "data directory (env HEADRACE_DATA_DIR)")
	f.StringVar(&d.topic, "topic", "", "look at one topic only")
	f.Int32Var(&d.partition, "partition", -1, "look at one partition only, -1 for all")
	f.Int64Var(&d.from, "from", 0, "with --records: first offset; with --wal: first raft index")
	f.Int64Var(&d.to, "to", math.MaxInt64, "with --records: last offset; with --wal: last raft index")
	f.BoolVar(&d.records, "records", false, "print every batch with its records, and committed offsets")
	f.BoolVar(&d.wal, "wal", false, "print the entries of the write-ahead logs with their units and operations")
	f.BoolVar(&d.verify, "verify", true, "read every batch; without it segments are looked at from outside")
	f.BoolVar(&d.repair, "repair", false, "make damaged files anew, as far as nothing is lost")
	f.BoolVar(&d.loss, "accept-loss", false, "with --repair: go on where acknowledged records are lost, after a question")
	f.BoolVar(&d.ok, "yes", false, "with --accept-loss: do not ask")
	return cmd
}

// debugError explains why a directory could not be looked at or repaired.
func debugError(err error) error {
	switch {
	case errors.Is(err, replication.ErrInUse):
		return fail("E2012", exitConflict, "%v", err)
	case errors.Is(err, replication.ErrNoData):
		return fail("E2003", exitNotFound, "%v", err).because("It has neither an identity nor shards.", "Name the directory that `headrace serve --data` uses.")
	case errors.Is(err, replication.ErrUnknownTopic):
		return serverCode("E1001", exitNotFound, "%v", err)
	case errors.Is(err, replication.ErrUnknownPartition):
		return fail("E2011", exitNotFound, "%v", err).because("Partitions are numbered from 0.", "Leave --partition out to see all of them.")
	case errors.Is(err, replication.ErrLoss):
		return fail("E2015", exitRotten, "%v", err)
	case errors.Is(err, replication.ErrNoRepair):
		return fail("E2016", exitRotten, "%v", err)
	}
	return err
}

// debugRepair repairs, first what can be without a loss.
func (a *app) debugRepair(cmd *cobra.Command, d *debugLog) error {
	o := replication.RepairOptions{Dir: d.dir}
	rep, err := replication.Repair(cmd.Context(), o)
	if errors.Is(err, replication.ErrLoss) && d.loss {
		fmt.Fprintf(a.err, "ACKNOWLEDGED RECORDS WILL BE LOST:\n  %s\n", strings.ReplaceAll(err.Error(), "; ", "\n  "))
		if !d.ok {
			fmt.Fprint(a.err, "Keep a copy of the directory. Type lose to go on: ")
			line, _ := bufio.NewReader(a.in).ReadString('\n') // nothing is another word
			if strings.TrimSpace(line) != "lose" {
				return fail("E2015", exitRotten, "not confirmed; nothing more was changed")
			}
		}
		a.repaired(rep)
		o.AcceptLoss = true
		rep, err = replication.Repair(cmd.Context(), o)
	}
	a.repaired(rep)
	return debugError(err)
}

func (a *app) repaired(rep *replication.RepairReport) {
	if rep == nil {
		return
	}
	for _, s := range rep.Steps {
		fmt.Fprintln(a.err, "repaired", s)
	}
	for _, s := range rep.Lost {
		fmt.Fprintln(a.err, "LOST", s)
	}
}

// debugInspect prints what a directory holds, and ends with its verdict.
func (a *app) debugInspect(d *debugLog) error {
	p := dumper{a: a, d: d, json: a.output == outputJSON}
	o := replication.InspectOptions{Dir: d.dir, Topic: d.topic, Partition: d.partition, Quick: !d.verify}
	if d.records {
		o.Batch, o.Offsets = p.batch, p.offsets
	}
	if d.wal {
		o.Entries = p.group
	}
	rep, err := replication.Inspect(o)
	if err != nil {
		return debugError(err)
	}
	if p.json && (d.records || d.wal) {
		err = p.line("report", rep)
	} else if done, jerr := a.asJSON(rep); done {
		err = jerr
	} else {
		p.report(rep)
	}
	if err != nil {
		return err
	}
	switch rep.Verdict {
	case wal.Torn:
		return fail("E2013", exitTorn, "%s is torn", d.dir)
	case wal.Rotten:
		return fail("E2014", exitRotten, "%s is rotten: %s", d.dir, plural(len(rep.Faults), "fault"))
	case wal.Clean:
	}
	return nil
}

// A dumper prints parts of a data directory.
type dumper struct {
	a    *app
	d    *debugLog
	json bool
}

func (p *dumper) line(kind string, v any) error {
	return json.NewEncoder(p.a.out).Encode(map[string]any{kind: v})
}

func stamp(ns int64) string { return time.Unix(0, ns).UTC().Format("2006-01-02T15:04:05.000000Z") }

func stampMillis(ms int64) string {
	if ms < 0 {
		return "-"
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}

// clipped shows bytes from outside: printable, and not much of them.
func clipped(b []byte) string {
	if b == nil {
		return "null"
	}
	if len(b) > 60 {
		return fmt.Sprintf("%s… (%d bytes)", strings.TrimSuffix(strconv.Quote(string(b[:60])), `"`), len(b))
	}
	return strconv.Quote(string(b))
}

func (p *dumper) batch(b log.StoredBatch) error {
	if b.Ref.Last < p.d.from || b.Ref.Base > p.d.to {
		return nil
	}
	h := b.Header
	if p.json {
		return p.line("batch", map[string]any{
			"partition": b.Partition.String(), "file": b.Path, "position": b.Ref.Pos, "bytes": b.Ref.Size, "first": b.Ref.Base, "last": b.Ref.Last,
			"crc": fmt.Sprintf("%08x", h.CRC), "link": fmt.Sprintf("%08x", b.Ref.Link), "raft_index": b.Ref.Index, "unit": b.Ref.Unit, "raft_term": b.Ref.Term,
			"append_time": stamp(b.Ref.AppendTime), "max_timestamp": h.MaxTimestamp, "producer": h.ProducerID, "producer_epoch": h.ProducerEpoch,
			"sequence": h.BaseSequence, "records": h.Count, "codec": h.Codec().String(), "control": h.Control(),
		})
	}
	kind := h.Codec().String()
	if h.Control() {
		kind += ", control"
	}
	producer := ""
	if h.ProducerID >= 0 {
		producer = fmt.Sprintf(", producer %d epoch %d sequence %d", h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	}
	fmt.Fprintf(p.a.out, "batch %s offsets %d to %d: %s, %d B at %d of %s, crc %08x link %08x, raft %d/%d term %d, appended %s%s\n",
		b.Partition, b.Ref.Base, b.Ref.Last, plural(h.Count, "record"), b.Ref.Size, b.Ref.Pos, b.Path, h.CRC, b.Ref.Link, b.Ref.Index, b.Ref.Unit, b.Ref.Term,
		stamp(b.Ref.AppendTime), producer)
	var r record.Reader
	if err := r.Reset(b.Data); err != nil {
		fmt.Fprintf(p.a.out, "  %s: %v\n", kind, err)
		return nil
	}
	for r.Next() {
		if x := r.Record(); x.Offset >= p.d.from && x.Offset <= p.d.to {
			fmt.Fprintf(p.a.out, "  %d  %s  %s  %s\n", x.Offset, stampMillis(x.Timestamp), clipped(x.Key), clipped(x.Value))
		}
	}
	if err := r.Err(); err != nil {
		fmt.Fprintf(p.a.out, "  %s: %v\n", kind, err)
	}
	return nil
}

func (p *dumper) offsets(group string, o log.GroupOffset) error {
	if p.json {
		return p.line("committed", map[string]any{"group": group, "partition": o.Partition.String(), "offset": o.Offset, "committed_at": o.CommittedAt})
	}
	fmt.Fprintf(p.a.out, "group %s committed %d of %s at %s\n", strconv.Quote(group), o.Offset, o.Partition, stampMillis(o.CommittedAt))
	return nil
}

func (p *dumper) group(shard string, g wal.Group) error {
	var recs []string
	for i := range g.Records {
		r := &g.Records[i]
		if r.Kind == "entry" && (int64(r.Index) < p.d.from || int64(r.Index) > p.d.to) {
			continue
		}
		recs = append(recs, walRecord(shard, r)...)
	}
	if p.json {
		return p.line("group", map[string]any{
			"shard": shard, "segment": g.Segment, "position": g.Position, "bytes": g.Bytes, "number": g.Number, "synced": g.Synced, "gap": g.Gap, "records": recs,
		})
	}
	if p.d.from > 0 && len(recs) == 0 {
		return nil
	}
	gap := ""
	if g.Gap {
		gap = ", GROUPS BEFORE IT ARE MISSING"
	}
	fmt.Fprintf(p.a.out, "%s segment %d byte %d: group %d, %d B, synced to %d%s\n", shard, g.Segment, g.Position, g.Number, g.Bytes, g.Synced, gap)
	for _, r := range recs {
		fmt.Fprintln(p.a.out, "  "+r)
	}
	return nil
}

func walRecord(shard string, r *wal.Record) []string {
	switch r.Kind {
	case "stable":
		if r.Removed {
			return []string{"stable " + strconv.Quote(r.Key) + " removed"}
		}
		return []string{fmt.Sprintf("stable %s = %x", strconv.Quote(r.Key), r.Value)}
	case "open":
		return []string{fmt.Sprintf("open next %d front %d", r.Index, r.Front)}
	case "closed":
		return []string{"closed"}
	case "entry":
		head := fmt.Sprintf("entry %d term %d type %d, %d B", r.Index, r.Entry.Term, r.Entry.Type, len(r.Entry.Data))
		if r.Entry.Type != 0 { // raft's own
			return []string{head}
		}
		e, err := log.DecodeEntry(r.Entry.Data)
		if err != nil {
			return []string{head + ": " + err.Error()}
		}
		out := []string{fmt.Sprintf("%s, appended %s, %s", head, stamp(e.AppendTime), plural(e.Count, "unit"))}
		for i, u := range e.Units() {
			for op := range u.Ops() {
				out = append(out, fmt.Sprintf("  unit %d: %s", i, log.Describe(op)))
			}
		}
		return out
	}
	return []string{fmt.Sprintf("%s %d", r.Kind, r.Index)}
}

// report prints the summary.
func (p *dumper) report(rep *replication.DirReport) {
	a := p.a
	fmt.Fprintf(a.out, "directory  %s\ncluster    %s, node %d, disk %s\n", rep.Dir, rep.ClusterID, rep.NodeID, rep.DiskID)
	if m := rep.Mark; m != nil {
		fmt.Fprintf(a.out, "last run   did not stop in order: node epoch %d, process %d, since %s\n", m.Epoch, m.PID, m.Since.Format(time.RFC3339))
	}
	fmt.Fprintln(a.out)
	var rows [][]any
	for i := range rep.Shards {
		s := &rep.Shards[i]
		applied, check := s.Applied, uint64(0)
		if s.Store != nil {
			applied = s.Store.Applied
		}
		if s.Checkpoint != nil {
			check = s.Checkpoint.Index
		}
		rows = append(rows, []any{s.Name, s.Verdict, s.WAL.First, s.WAL.Last, s.WAL.Groups, applied, check})
	}
	a.table([]column{{name: "shard"}, {name: "verdict"}, {name: "first entry", right: true}, {name: "last", right: true}, {name: "groups", right: true}, {name: "applied", right: true}, {name: "checkpoint", right: true}}, rows)
	fmt.Fprintln(a.out)
	rows = nil
	for i := range rep.Shards {
		for _, f := range rep.Shards[i].WAL.Files {
			rows = append(rows, []any{rep.Shards[i].Name + "/wal/" + f.Name, f.Use, f.Verdict, f.Groups, f.First, f.Last, size(f.End)})
		}
	}
	a.table([]column{{name: "log file"}, {name: "use"}, {name: "verdict"}, {name: "groups", right: true}, {name: "first entry", right: true}, {name: "last", right: true}, {name: "used", right: true}}, rows)
	p.partitions(rep)
	for _, f := range rep.Faults {
		at := ""
		if f.Position >= 0 {
			at = fmt.Sprintf(" at byte %d", f.Position)
		}
		if f.Bytes > 0 {
			at += fmt.Sprintf(", %d B", f.Bytes)
		}
		if f.Partition != nil && f.Last >= f.First {
			at += fmt.Sprintf(" (partition %s, offsets %d to %d)", p.name(rep, *f.Partition), f.First, f.Last)
		}
		fmt.Fprintf(a.out, "%s  %s%s: %s\n", f.Verdict, f.File, at, f.Reason)
	}
	fmt.Fprintf(a.out, "verdict    %s\n", rep.Verdict)
}

func (p *dumper) name(rep *replication.DirReport, id log.PartitionID) string {
	for _, t := range rep.Topics {
		if t.ID == id.Topic {
			return fmt.Sprintf("%s/%d", t.Name, id.Index)
		}
	}
	return id.String()
}

func (p *dumper) partitions(rep *replication.DirReport) {
	var rows [][]any
	for i := range rep.Shards {
		if rep.Shards[i].Store == nil {
			continue
		}
		for _, x := range rep.Shards[i].Store.Partitions {
			bytes := x.MixedBytes
			for _, s := range x.Segments {
				bytes += s.LogBytes
			}
			rows = append(rows, []any{p.name(rep, x.ID), x.ID.String(), x.Start, x.End, len(x.Segments), x.MixedRuns, size(bytes), x.Batches, x.Records, x.Producers})
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(p.a.out)
	p.a.table([]column{
		{name: "partition"},
		{name: "directory"},
		{name: "start", right: true},
		{name: "end", right: true},
		{name: "segments", right: true},
		{name: "mixed runs", right: true},
		{name: "bytes", right: true},
		{name: "batches", right: true},
		{name: "records", right: true},
		{name: "producers", right: true},
	}, rows)
	fmt.Fprintln(p.a.out)
}

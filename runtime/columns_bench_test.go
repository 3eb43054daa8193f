package runtime

import (
	"fmt"
	"testing"

	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/operators"
	"github.com/headrace/headrace/runtime/codec"
)

// counted takes what leaves a chain of stages.
type counted struct {
	ops  []operators.Operator
	at   int
	rows *int
}

func (c counted) Emit(b *operators.Batch) {
	if c.at < len(c.ops) {
		c.ops[c.at].Process(b, counted{c.ops, c.at + 1, c.rows})
		return
	}
	*c.rows += b.Rows
	b.Release()
}

func (counted) Late(*operators.Batch, []int)                {}
func (counted) Fail(*operators.Batch, []operators.RowError) {}

// BenchmarkColumnsFilterMap is filter and map over the batches of a topic, as they lie in the log: columns, and the same
// rows in JSON.
func BenchmarkColumnsFilterMap(b *testing.B) {
	const rows = 8192
	for _, format := range []string{"arrow", "json"} {
		m, err := dsl.Compile("m.hr", fmt.Sprintf(`topic src { ts: time("ms"), user: string, amount: float64, country: string, qty: int32 } with format %s, time ts lag 1s
topic numbers = from src |> where amount > 900 |> set twice = amount * 2.0 |> select ts, twice, qty
topic texts = from src |> where amount > 900 and country != "US" |> select ts, user, twice = amount * 2.0`, format), dsl.Options{})
		if err != nil {
			b.Fatal(err)
		}
		rb := record.NewBuilder()
		x := uint64(1)
		for i := range rows {
			x = x*6364136223846793005 + 1442695040888963407
			r := x >> 33
			rb.Append(1, nil, fmt.Appendf(nil, `{"ts":%d,"user":"user-%08d","amount":%d.5,"country":"%s","qty":%d}`,
				1_700_000_000_000+i, r%100_000, r%1000, []string{"US", "DE", "FR", "JP"}[r>>8%4], r%10), nil)
		}
		batch := rb.Finish()
		if format == "arrow" {
			conv, err := codec.NewColumns(m.Topics[0])
			if err != nil {
				b.Fatal(err)
			}
			if batch, err = conv.Convert(batch); err != nil {
				b.Fatal(err)
			}
		}
		for _, pl := range m.Pipelines {
			b.Run(pl.Output.Name+"/"+format, func(b *testing.B) {
				ops, err := buildStages(pl.Source, pl.Stages, stageOptions{emitRows: emitRows}, memory.DefaultAllocator)
				if err != nil {
					b.Fatal(err)
				}
				d, err := codec.NewDecoder(pl.Source, pl.Needed, nil)
				if err != nil {
					b.Fatal(err)
				}
				out := 0
				for b.Loop() {
					if err := d.Append(0, 0, batch, 0); err != nil {
						b.Fatal(err)
					}
					rows, _ := d.Flush()
					counted{ops, 0, &out}.Emit(rows)
				}
				if out == 0 {
					b.Fatal("nothing passes")
				}
				b.SetBytes(int64(len(batch)))
				b.ReportAllocs()
				b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
			})
		}
	}
}

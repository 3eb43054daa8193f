package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace/headrace/client"
)

// columnsFrame is the rows of one frame: about 0.7 MB.
const columnsFrame = 16 << 10

// columnsOf are those of columnsModule.
var columnsOf = []client.Column{{Name: "ts", Type: "time"}, {Name: "user", Type: "string"}, {Name: "amount", Type: "float64"}, {Name: "country", Type: "string"}, {Name: "qty", Type: "int32"}}

// A rowSource makes frames of rows: a few blocks of values, and the time of the moment.
type rowSource struct {
	blocks []rowBlock
	ts     []int64
	next   int
}

type rowBlock struct {
	user, country client.Text
	amount        []float64
	qty           []int32
}

func newRowSource(seed uint64) *rowSource {
	countries := []string{"US", "DE", "FR", "JP", "BR", "IN", "CN", "GB", "NL", "SE"}
	s := &rowSource{ts: make([]int64, columnsFrame)}
	seed = 2*seed + 1
	for range 4 {
		b := rowBlock{amount: make([]float64, columnsFrame), qty: make([]int32, columnsFrame)}
		b.user.Offsets, b.country.Offsets = make([]int32, 1, columnsFrame+1), make([]int32, 1, columnsFrame+1)
		for i := range columnsFrame {
			seed = seed*6364136223846793005 + 1442695040888963407
			x := seed >> 33
			b.user.Bytes = fmt.Appendf(b.user.Bytes, "user-%08d", x%100_000)
			b.user.Offsets = append(b.user.Offsets, int32(len(b.user.Bytes)))
			b.country.Bytes = append(b.country.Bytes, countries[(x>>8)%10]...)
			b.country.Offsets = append(b.country.Offsets, int32(len(b.country.Bytes)))
			b.amount[i], b.qty[i] = float64(x%100_000)/100, int32(x%10)
		}
		s.blocks = append(s.blocks, b)
	}
	return s
}

// send sends one frame.
func (s *rowSource) send(ctx context.Context, in *client.Ingest, done func(client.FrameAck)) error {
	b := &s.blocks[s.next%len(s.blocks)]
	s.next++
	now := time.Now().UnixNano()
	for i := range s.ts {
		s.ts[i] = now + int64(i)
	}
	return in.WriteColumns(ctx, done, s.ts, b.user, b.amount, b.country, b.qty)
}

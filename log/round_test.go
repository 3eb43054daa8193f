package log

import (
	"math/rand/v2"
	"testing"
)

// A producer that is forgotten and comes again within a round has two rows of one key, the first of which is a delete.
func TestRowsOfOneKeyStayInTheOrderOfApply(t *testing.T) {
	r := &round{}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		id := PartitionID{Topic: TopicID{byte(rng.IntN(3)), byte(rng.IntN(2))}, Index: int32(rng.IntN(3))}
		r.parts = append(r.parts, roundPart{p: &Partition{id: id}})
		r.producers = append(r.producers, producerRow{id, producer{id: rng.Int64N(4)}})
	}
	r.sort()
	key := func(kind byte, at int32) string {
		if kind == rowPartition {
			return string(partitionKey(kind, r.parts[at].p.id))
		}
		x := &r.producers[at]
		return string(appendI64(partitionKey(kind, x.id), x.r.id))
	}
	for kind, order := range map[byte][]rowOrder{rowPartition: r.partOrder, rowProducer: r.producerOrder} {
		seen := map[int32]bool{}
		for i, o := range order {
			seen[o.at] = true
			if i == 0 {
				continue
			}
			before := order[i-1]
			if a, b := key(kind, before.at), key(kind, o.at); a > b || a == b && before.at > o.at {
				t.Fatalf("kind %q: row %d (%+v) behind %+v", kind, i, o, before)
			}
		}
		if len(seen) != 1000 {
			t.Fatalf("kind %q: %d rows of 1000", kind, len(seen))
		}
	}
}

package record

import (
	"fmt"
	"testing"
)

// benchBatch is n records of size bytes each, with a short key.
func benchBatch(codec Codec, n, size int) []byte {
	b := NewBuilder()
	b.SetCodec(codec)
	value := make([]byte, size)
	for i := range value {
		value[i] = "0123456789 abcdef"[i*i%17]
	}
	for i := range n {
		b.Append(1_700_000_000_000+int64(i), fmt.Appendf(nil, "key-%d", i), value, nil)
	}
	return b.Finish()
}

func BenchmarkVerify(b *testing.B) {
	batch := benchBatch(None, 1000, 100)
	b.Run("checksum", func(b *testing.B) {
		b.SetBytes(int64(len(batch)))
		for b.Loop() {
			if _, err := Verify(batch); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("records", func(b *testing.B) {
		b.SetBytes(int64(len(batch)))
		for b.Loop() {
			if err := VerifyRecords(batch); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
	})
}

func BenchmarkRead(b *testing.B) {
	for _, codec := range codecs {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			batch := benchBatch(codec, 1000, 100)
			var r Reader
			b.SetBytes(1000 * 110)
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Reset(batch); err != nil {
					b.Fatal(err)
				}
				for r.Next() {
				}
				if r.Err() != nil {
					b.Fatal(r.Err())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, codec := range codecs {
		b.Run("codec="+codec.String(), func(b *testing.B) {
			value := benchBatch(None, 1, 100)[HeaderSize+10:]
			key := []byte("key")
			w := NewBuilder()
			w.SetCodec(codec)
			b.SetBytes(1000 * 110)
			b.ReportAllocs()
			for b.Loop() {
				for i := range int64(1000) {
					w.Append(i, key, value, nil)
				}
				w.Finish()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
		})
	}
}

package soak

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Whatever the noise, a leak of twice the limit is found and a steady process is not accused.
func TestLeaksAreFoundAndNoiseIsNot(t *testing.T) {
	limit := Limit{Share: 0.10, Amount: 5}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 40 + rng.IntN(200)
		at := func(shape func(x float64) float64) []float64 {
			out := make([]float64, n)
			for i := range out {
				out[i] = shape(float64(i)/float64(n)) + 4*rng.NormFloat64()
				if rng.IntN(15) == 0 {
					out[i] += 200 // a burst
				}
			}
			return out
		}
		for _, c := range []struct {
			name  string
			grows bool
			shape func(x float64) float64
		}{
			{"steady", false, func(float64) float64 { return 100 }},
			{"warm-up", false, func(x float64) float64 { return 100 * min(1, 5*x) }},
			{"periodic", false, func(x float64) float64 { return 100 + 8*math.Sin(x*60) }},
			{"one step", false, func(x float64) float64 {
				if x > 0.9 {
					return 160
				}
				return 100
			}},
			{"falls", false, func(x float64) float64 { return 200 - 100*x }},
			{"leak", true, func(x float64) float64 { return 100 + 60*x }},
			{"leak after a warm-up", true, func(x float64) float64 { return 100*min(1, 5*x) + 60*x }},
		} {
			if why := Grows(at(c.shape), limit); (why != "") != c.grows {
				t.Errorf("seed %d, %s: %q", seed, c.name, why)
			}
		}
	}
}

func TestAPlotShowsTheShape(t *testing.T) {
	if got := Plot([]float64{0, 0, 4, 4, 8, 8}, 3); got != " ▄█" {
		t.Errorf("%q", got)
	}
	if got := Plot([]float64{0, 0}, 10); got != "  " {
		t.Errorf("%q", got)
	}
}

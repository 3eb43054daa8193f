//go:build race

package demo

func init() {
	// The race detector makes the demo ten times as slow. What runs is the same in the parts left out,
	// and the demo itself runs in whole without it.
	parts = []string{"retail", "live"}
}

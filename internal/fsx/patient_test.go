package fsx

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestAPatientFileSystemWaitsForSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var full atomic.Bool
		var asked atomic.Int64
		var states []bool
		inner := Inject(NewMem(), func(op Op, _ string) error {
			if full.Load() && (op == OpWrite || op == OpCreate) {
				return syscall.ENOSPC
			}
			return nil
		})
		p := NewPatient(inner, PatientOptions{
			Delay: time.Second,
			State: func(err error) { states = append(states, err != nil) },
			Full:  func() { asked.Add(1) },
		})
		full.Store(true)
		if _, err := p.Create("early", Category); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("before it is patient: %v", err)
		}
		full.Store(false)
		p.Patient()
		f, err := p.Create("a", Category)
		if err != nil {
			t.Fatal(err)
		}
		full.Store(true)
		begun := time.Now()
		go func() {
			time.Sleep(3500 * time.Millisecond)
			full.Store(false)
		}()
		if n, err := f.Write([]byte("words")); n != 5 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if took := time.Since(begun); took != 4*time.Second || asked.Load() != 4 || p.Broken() {
			t.Errorf("took %v, asked %d times for room, broken %v", took, asked.Load(), p.Broken())
		}
		if n := len(states); n != 5 || !states[3] || states[4] {
			t.Errorf("states %v", states)
		}
		full.Store(true)
		go func() {
			time.Sleep(time.Millisecond)
			p.Hurry()
		}()
		if _, err := f.Write([]byte("more")); !errors.Is(err, syscall.ENOSPC) || !p.Broken() {
			t.Errorf("after Hurry: %v, broken %v", err, p.Broken())
		}
	})
}

// Pebble's marker names its manifest, so the manifest's name is durable first. Other names are their maker's business.
func TestTheNameOfAManifestIsDurableAtOnce(t *testing.T) {
	mem := NewMem()
	fs := NewPatient(mem, PatientOptions{})
	for _, name := range []string{"MANIFEST-000001", "000002.sst"} {
		f, err := fs.Create(name, Category)
		must(t, err)
		must(t, f.Close())
	}
	cut := mem.PowerCut()
	if _, err := cut.Stat("MANIFEST-000001"); err != nil {
		t.Errorf("the manifest: %v", err)
	}
	if _, err := cut.Stat("000002.sst"); err == nil {
		t.Error("another file is kept as well: the test shows nothing")
	}
}

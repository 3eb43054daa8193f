package replication

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/headrace/headrace/internal/fsx"
)

func TestAStartSaysHowTheLastRunEnded(t *testing.T) {
	fs := fsx.NewMem()
	o := nodeOptions(fs)
	o.BootID = "boot 1"
	n := openNode(t, o)
	if s := n.Startup(); s.Kind != StartFirst || n.Unclean() {
		t.Errorf("first start: %+v", s)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	damaged := fs.CrashClone(vfs.CrashCloneCfg{})
	must(t, n.Close())
	n = openNode(t, o)
	if s := n.Startup(); s.Kind != StartClean || n.Unclean() {
		t.Errorf("after a stop: %+v", s)
	}
	must(t, n.Close())

	for _, c := range []struct {
		boot string
		want StartKind
	}{{"boot 1", StartCrash}, {"boot 2", StartPower}} {
		o := nodeOptions(crashed.CrashClone(vfs.CrashCloneCfg{}))
		o.BootID = c.boot
		n := openNode(t, o)
		if s := n.Startup(); s.Kind != c.want || s.Last.Epoch != 1 || s.Last.BootID != "boot 1" || !n.Unclean() {
			t.Errorf("in %s: %+v", c.boot, s)
		}
		must(t, n.Close())
	}

	f, err := damaged.OpenFile(damaged.PathJoin(o.Dir, openMark))
	must(t, err)
	_, err = f.WriteAt([]byte{'x'}, 3)
	must(t, err)
	must(t, f.Close())
	o = nodeOptions(damaged)
	o.BootID = "boot 1"
	n = openNode(t, o)
	if s := n.Startup(); s.Kind != StartUnknown || !n.Unclean() {
		t.Errorf("with a damaged mark: %+v", s)
	}
	must(t, n.Close())
	if n = openNode(t, o); n.Startup().Kind != StartClean {
		t.Errorf("after the stop that followed: %+v", n.Startup())
	}
	must(t, n.Close())
}

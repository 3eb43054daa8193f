package fsx

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
)

// ImageOptions say which images of a Recording are made. With zero values it is all of them, which is more than one
// wants of anything but a short list.
type ImageOptions struct {
	// Seed draws the samples.
	Seed uint64
	// Random is how many random subsets of what was not synced are tried at each place.
	Random int
	// Every skips places: one in so many is looked at. 0 and 1: each. The end always is.
	Every int
	// PerPlace bounds the images of one place; beyond, a sample is taken. 0: no bound.
	PerPlace int
	// Tears bounds how many cuts of the last write are tried at a place; beyond, a sample is taken. 0: no bound.
	Tears int
	// Skip is asked with the hash of an image and the mark that it carries before the image is made. nil: none are.
	Skip func(hash uint64, mark any) bool
}

// An Image is what a crash may leave.
type Image struct {
	Place int    // so many operations had been done
	Kind  string // what became of those that were not synced
	Mark  any    // the last mark before the crash; nil: none
	Hash  uint64 // of names and bytes
	FS    *Mem   // independent, all of it synced
}

func (i *Image) String() string { return fmt.Sprintf("operation %d, %s", i.Place, i.Kind) }

// Images makes the images that a crash can leave, at one place of the list after the other: everything that was synced,
// and of the operations that were not
//
//   - none, all, each alone, all but each, random subsets;
//   - those of one file or directory alone, and all but those: order is swapped across files;
//   - names without bytes (a rename before what it names) and bytes without names;
//   - a write whose place counts in the size and whose bytes are zeros or garbage;
//   - the last write cut at each sector of 512 bytes, or at each byte if it is short, and random sectors of it.
//
// Names follow a journaling file system, as those of Mem do: a rename is atomic; a name is not kept when an earlier
// change of the same file's name was lost; a removal is kept only together with everything done before it in its
// directory. Bytes know no order.
//
// Pages are shared between images and copied when they are written, so an image costs about what it differs in.
func (r *Recording) Images(o ImageOptions) iter.Seq[Image] {
	return func(yield func(Image) bool) {
		p := newReplay(r)
		var mark any
		for k := range r.ops {
			if r.ops[k].op == opMark {
				mark = r.ops[k].mark
				continue
			}
			rng := rand.New(rand.NewPCG(o.Seed, uint64(k)))
			second := r.ops[k].move != 0 && r.ops[k].op == OpRemove // half of a rename: both are one
			if !second && (o.Every <= 1 || rng.IntN(o.Every) == 0) {
				if !p.emit(k, mark, o, rng, yield) {
					return
				}
			}
			p.do(k)
		}
		p.emit(len(r.ops), mark, o, rand.New(rand.NewPCG(o.Seed, uint64(len(r.ops)))), yield)
	}
}

// A replay goes through a recording and holds what is durable and which operations are not.
type replay struct {
	ops     []recorded
	files   map[inode]*imageFile
	dirs    map[inode]map[string]inode
	isDir   map[inode]bool
	moved   map[int]bool // renames across directories that are durable
	pending []int        // in order
	last    int          // the operation done last, -1: none
}

func newReplay(r *Recording) *replay {
	t := tree{dirs: map[inode]map[string]inode{}, last: rootInode}
	known := map[*memNode]inode{}
	number(r.base.root, rootInode, &t, known)
	p := &replay{ops: r.ops, files: map[inode]*imageFile{}, dirs: t.dirs, isDir: map[inode]bool{}, moved: map[int]bool{}, last: -1}
	for id := range t.dirs {
		p.isDir[id] = true
	}
	for i := range r.ops {
		if r.ops[i].dir {
			p.isDir[r.ops[i].child] = true
		}
	}
	for n, id := range known {
		if !n.dir {
			f := &imageFile{pages: slices.Clone(n.pages), size: n.size}
			f.sums = make([]uint64, len(f.pages))
			for i, page := range f.pages {
				f.sums[i] = pageSum(i, page)
				f.sum += f.sums[i]
			}
			p.files[id] = f
		}
	}
	return p
}

// do carries out operation k.
func (p *replay) do(k int) {
	p.last = k
	op := &p.ops[k]
	switch op.op {
	case OpSync:
		p.settle(func(x *recorded) bool {
			return (x.op == OpWrite || x.op == OpTruncate) && x.node == op.node &&
				(!op.direct || x.off < op.off+op.length && op.off < x.off+x.length)
		})
	case OpSyncDir:
		p.settle(func(x *recorded) bool {
			return x.named() && x.node == op.node
		})
		p.prune()
	default:
		p.pending = append(p.pending, k)
	}
}

// named reports that an operation changes names rather than bytes.
func (x *recorded) named() bool { return x.op == OpCreate || x.op == OpRemove || x.op == OpRename }

// settle makes the pending operations durable that which picks.
func (p *replay) settle(which func(*recorded) bool) {
	left := p.pending[:0]
	for _, k := range p.pending {
		x := &p.ops[k]
		switch {
		case !which(x):
			left = append(left, k)
		case x.named():
			if x.move != 0 {
				p.moved[x.move] = true
			}
			rename(p.dir, x)
		default:
			f := p.files[x.node]
			if f == nil {
				f = &imageFile{}
				p.files[x.node] = f
			}
			f.apply(x)
		}
	}
	p.pending = left
}

func (p *replay) dir(id inode) map[string]inode {
	d := p.dirs[id]
	if d == nil {
		d = map[string]inode{}
		p.dirs[id] = d
	}
	return d
}

// rename changes names as x says.
func rename(dir func(inode) map[string]inode, x *recorded) {
	switch x.op {
	case OpRemove:
		delete(dir(x.node), x.name)
	case OpRename:
		if x.from != "" {
			delete(dir(x.node), x.from)
		}
		dir(x.node)[x.name] = x.child
	default:
		dir(x.node)[x.name] = x.child
	}
}

// prune forgets what no image can reach any more.
func (p *replay) prune() {
	reach := map[inode]bool{rootInode: true}
	var walk func(inode)
	walk = func(id inode) {
		for _, child := range p.dirs[id] {
			if !reach[child] {
				reach[child] = true
				walk(child)
			}
		}
	}
	walk(rootInode)
	for _, k := range p.pending {
		if x := &p.ops[k]; x.named() && x.op != OpRemove && !reach[x.child] {
			reach[x.child] = true
			walk(x.child)
		}
	}
	p.pending = slices.DeleteFunc(p.pending, func(k int) bool {
		return !reach[p.ops[k].node]
	})
	maps.DeleteFunc(p.files, func(id inode, _ *imageFile) bool { return !reach[id] })
}

// A choice says which pending operations an image keeps, and what became of one of them.
type choice struct {
	kind  string
	keep  []bool // by place in pending
	spoil int    // place in pending of a write that is not whole, -1: none
	how   func(x recorded) []recorded
}

func (p *replay) emit(k int, mark any, o ImageOptions, rng *rand.Rand, yield func(Image) bool) bool {
	choices := p.choices(o, rng)
	if o.PerPlace > 0 && len(choices) > o.PerPlace {
		rest := choices[min(2, len(choices)):] // none and all stay
		rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		choices = choices[:max(2, o.PerPlace)]
	}
	for _, c := range choices {
		s := p.choose(c)
		hash := s.hash(rootInode, 1)
		if o.Skip != nil && o.Skip(hash, mark) {
			continue
		}
		if !yield(Image{Place: k, Kind: c.kind, Mark: mark, Hash: hash, FS: s.build()}) {
			return false
		}
	}
	return true
}

func (p *replay) choices(o ImageOptions, rng *rand.Rand) []choice {
	n := len(p.pending)
	var out []choice
	add := func(kind string, keep func(i int, x *recorded) bool) {
		c := choice{kind: kind, keep: make([]bool, n), spoil: -1}
		for i, k := range p.pending {
			c.keep[i] = keep(i, &p.ops[k])
		}
		out = append(out, c)
	}
	all := func(int, *recorded) bool { return true }
	add("nothing unsynced", func(int, *recorded) bool { return false })
	if n == 0 {
		return out
	}
	add("everything", all)
	add("names without bytes", func(_ int, x *recorded) bool { return x.named() })
	add("bytes without names", func(_ int, x *recorded) bool { return !x.named() })
	nodes := map[inode]bool{}
	for i, k := range p.pending {
		add(fmt.Sprintf("only unsynced operation %d", k), func(j int, _ *recorded) bool { return j == i })
		add(fmt.Sprintf("all but operation %d", k), func(j int, _ *recorded) bool { return j != i })
		if id := p.ops[k].node; !nodes[id] {
			nodes[id] = true
			add(fmt.Sprintf("only those of node %d", id), func(_ int, x *recorded) bool { return x.node == id })
			add(fmt.Sprintf("all but those of node %d", id), func(_ int, x *recorded) bool { return x.node != id })
		}
	}
	for range o.Random {
		add("a random part", func(int, *recorded) bool { return rng.IntN(2) == 0 })
	}
	spoil := func(kind string, at int, rest bool, how func(recorded) []recorded) {
		add(kind, func(i int, _ *recorded) bool { return rest || i == at })
		c := &out[len(out)-1]
		c.spoil, c.how = at, how
	}
	for i, k := range p.pending {
		if x := &p.ops[k]; x.op == OpWrite && x.off+x.length > p.size(x.node) {
			spoil(fmt.Sprintf("operation %d left zeros", k), i, true, func(x recorded) []recorded {
				x.data = nil
				return []recorded{x}
			})
			spoil(fmt.Sprintf("operation %d left garbage", k), i, true, func(x recorded) []recorded {
				x.data = garbage(int(x.length), uint64(k))
				return []recorded{x}
			})
		}
	}
	if k := p.pending[n-1]; k == p.last && p.ops[k].op == OpWrite {
		p.tears(k, o, rng, func(kind string, rest bool, how func(recorded) []recorded) { spoil(kind, n-1, rest, how) })
	}
	return out
}

func (p *replay) size(id inode) int64 {
	if f := p.files[id]; f != nil {
		return f.size
	}
	return 0
}

// tears adds what a crash can leave of the write under way, operation k.
func (p *replay) tears(k int, o ImageOptions, rng *rand.Rand, add func(kind string, rest bool, how func(recorded) []recorded)) {
	x := &p.ops[k]
	var cuts []int64
	if x.length <= 256 {
		for at := int64(1); at < x.length; at++ {
			cuts = append(cuts, at)
		}
	} else {
		for at := (x.off/sectorSize+1)*sectorSize - x.off; at < x.length; at += sectorSize {
			cuts = append(cuts, at)
		}
	}
	if o.Tears > 0 && len(cuts) > o.Tears {
		rng.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
		cuts = cuts[:o.Tears]
	}
	for i, at := range cuts {
		add(fmt.Sprintf("operation %d cut after %d bytes", k, at), i%4 != 3, func(x recorded) []recorded { return []recorded{x.piece(0, at)} })
		if i%4 == 1 {
			add(fmt.Sprintf("operation %d without its first %d bytes", k, at), true, func(x recorded) []recorded {
				return []recorded{x.piece(at, x.length)}
			})
		}
	}
	if len(cuts) > 1 {
		seed := rng.Uint64()
		add(fmt.Sprintf("random sectors of operation %d", k), true, func(x recorded) (out []recorded) {
			r := rand.New(rand.NewPCG(seed, 1))
			for from := int64(0); from < x.length; {
				to := min(x.length, (x.off+from)/sectorSize*sectorSize+sectorSize-x.off)
				if r.IntN(2) == 0 {
					out = append(out, x.piece(from, to))
				}
				from = to
			}
			return out
		})
	}
}

// piece is a write of part of what x writes.
func (x recorded) piece(from, to int64) recorded {
	x.off, x.length = x.off+from, to-from
	if x.data != nil {
		x.data = x.data[from:to]
	}
	return x
}

func garbage(n int, seed uint64) []byte {
	r := rand.NewPCG(seed, 2)
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		v := r.Uint64()
		for j := i; j < min(n, i+8); j++ {
			b[j] = byte(v)
			v >>= 8
		}
	}
	return b
}

// A chosen is a replay's durable files with some operations on top.
type chosen struct {
	p     *replay
	files map[inode]*imageFile
	dirs  map[inode]map[string]inode
}

func (p *replay) choose(c choice) *chosen {
	s := &chosen{p: p, files: map[inode]*imageFile{}, dirs: map[inode]map[string]inode{}}
	lostIn, lost, moves := map[inode]bool{}, map[inode]bool{}, map[int]bool{}
	for i, k := range p.pending {
		x := &p.ops[k]
		switch {
		case !x.named():
			if !c.keep[i] {
				continue
			}
			f := s.file(x.node)
			if i == c.spoil {
				for _, part := range c.how(*x) {
					f.apply(&part)
				}
				continue
			}
			f.apply(x)
		default:
			keep := c.keep[i] && (x.op == OpRemove || !lost[x.child])
			if x.move != 0 {
				if decided, ok := moves[x.move]; ok {
					keep = decided
				}
				keep = keep || p.moved[x.move]
				moves[x.move] = keep
			}
			switch {
			case keep && (x.op != OpRemove || x.move != 0 || !lostIn[x.node]):
				rename(s.dir, x)
			default:
				lostIn[x.node] = true
				if x.op != OpRemove {
					lost[x.child] = true
				}
			}
		}
	}
	return s
}

// file returns a file that may be changed.
func (s *chosen) file(id inode) *imageFile {
	f := s.files[id]
	if f == nil {
		f = &imageFile{}
		if old := s.p.files[id]; old != nil {
			*f = imageFile{pages: slices.Clone(old.pages), sums: slices.Clone(old.sums), sum: old.sum, size: old.size}
		}
		s.files[id] = f
	}
	return f
}

// dir returns a directory that may be changed.
func (s *chosen) dir(id inode) map[string]inode {
	d := s.dirs[id]
	if d == nil {
		if d = maps.Clone(s.p.dirs[id]); d == nil {
			d = map[string]inode{}
		}
		s.dirs[id] = d
	}
	return d
}

// entries returns the names in a directory; nil if it has none yet.
func (s *chosen) entries(id inode) map[string]inode {
	if d, ok := s.dirs[id]; ok {
		return d
	}
	return s.p.dirs[id]
}

func (s *chosen) look(id inode) *imageFile {
	if f := s.files[id]; f != nil {
		return f
	}
	return s.p.files[id]
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum64 is a hash that is the same in every run, so that what is drawn from it can be replayed.
func sum64(p []byte) uint64 {
	return uint64(crc32.Checksum(p, castagnoli))<<32 | uint64(crc32.ChecksumIEEE(p))
}

func mix(a, b uint64) uint64 {
	a = (a ^ b*0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return a ^ a>>31
}

// hash adds up what lies below a directory. at stands for its path.
func (s *chosen) hash(id inode, at uint64) uint64 {
	sum := mix(at, 7)
	for name, child := range s.entries(id) {
		path := mix(at, sum64([]byte(name)))
		switch f := s.look(child); {
		case s.p.isDir[child]:
			sum += s.hash(child, path)
		case f == nil:
			sum += mix(mix(path, 0), 1)
		default:
			sum += mix(mix(path, f.sum), uint64(f.size)+1)
		}
	}
	return sum
}

func (s *chosen) build() *Mem {
	nodes := map[inode]*memNode{}
	var build func(id inode) *memNode
	build = func(id inode) *memNode {
		if n := nodes[id]; n != nil {
			return n
		}
		n := &memNode{}
		nodes[id] = n
		if !s.p.isDir[id] {
			if f := s.look(id); f != nil {
				n.pages, n.size, n.syncedSize = slices.Clone(f.pages), f.size, f.size
			}
			return n
		}
		n.dir, n.children = true, map[string]*memNode{}
		for name, child := range s.entries(id) {
			n.children[name] = build(child)
		}
		n.synced = maps.Clone(n.children)
		return n
	}
	return &Mem{root: build(rootInode), locks: map[string]bool{}}
}

// An imageFile is the bytes of a file. Its pages are never changed: a write replaces them.
type imageFile struct {
	pages [][]byte // nil: zeros
	sums  []uint64 // of the pages
	sum   uint64   // their sum
	size  int64
}

func pageSum(i int, page []byte) uint64 {
	if page == nil || bytes.Equal(page, zeroPage[:]) {
		return 0
	}
	return mix(sum64(page), uint64(i)+1)
}

func (f *imageFile) apply(x *recorded) {
	if x.op == OpTruncate {
		f.truncate(x.length)
		return
	}
	end := x.off + x.length
	for at := x.off; at < end; {
		i, from := int(at/PageSize), int(at%PageSize)
		n := int(min(int64(PageSize-from), end-at))
		if x.data != nil {
			f.set(i, from, x.data[at-x.off:at-x.off+int64(n)])
		} else {
			f.set(i, from, zeroPage[:n])
		}
		at += int64(n)
	}
	f.size = max(f.size, end)
}

// set writes into one page.
func (f *imageFile) set(i, from int, p []byte) {
	for len(f.pages) <= i {
		f.pages, f.sums = append(f.pages, nil), append(f.sums, 0)
	}
	if f.pages[i] == nil && allZero(p) {
		return
	}
	page := make([]byte, PageSize)
	copy(page, f.pages[i])
	copy(page[from:], p)
	f.pages[i] = page
	f.sum -= f.sums[i]
	f.sums[i] = pageSum(i, page)
	f.sum += f.sums[i]
}

func (f *imageFile) truncate(size int64) {
	n := pageCount(size)
	for i := n; i < len(f.pages); i++ {
		f.sum -= f.sums[i]
	}
	f.pages, f.sums = f.pages[:min(len(f.pages), n)], f.sums[:min(len(f.pages), n)]
	f.size = size
	if rest := int(size % PageSize); rest != 0 && n == len(f.pages) {
		f.set(n-1, rest, zeroPage[:PageSize-rest])
	}
}

// Hash is the hash of an Image with the names and bytes that m holds now.
func (m *Mem) Hash() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.root.hash(1)
}

func (n *memNode) hash(at uint64) uint64 {
	if !n.dir {
		sum := uint64(0)
		for i, page := range n.pages {
			sum += pageSum(i, page)
		}
		return mix(mix(at, sum), uint64(n.size)+1)
	}
	sum := mix(at, 7)
	for name, child := range n.children {
		sum += child.hash(mix(at, sum64([]byte(name))))
	}
	return sum
}

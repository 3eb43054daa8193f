package wal

import (
	"fmt"
)

// groupSlack is what a group holds besides entries: the header, a front record, and a truncation or reset.
const groupSlack = headerSize + 2*indexSize

// Append adds entries with consecutive indexes and returns when they are synced. An index at or below the last one
// first drops everything from it on, in the same group. The first index above the last one is last+1; an empty log
// takes any. Entries that do not fit one group are written as several, each synced.
//
// The log keeps references to Data and Extensions for Read: they must not change afterwards. Append allocates nothing
// per entry.
//
// Errors: ErrPoisoned (what was in flight is unknown); ErrGap, ErrTooLarge, ErrNoSegment (nothing was written, except
// that ErrNoSegment may come after a prefix of the entries); ErrClosed.
func (w *WAL) Append(entries []Entry) error { return w.append(entries, true) }

// AppendUnsynced is Append that returns when the operating system has the entries. They survive the death of the
// process; they survive a power cut once SyncTo, Options.SyncWithin or any synced call after them has synced them.
// A power cut before that cuts them off, newest first or from anywhere among the unsynced ones on: what is left is
// always a prefix.
//
// A log that writes past the page cache syncs them all the same.
//
// Errors: as Append.
func (w *WAL) AppendUnsynced(entries []Entry) error { return w.append(entries, false) }

func (w *WAL) append(entries []Entry, sync bool) error {
	if len(entries) == 0 {
		return nil
	}
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	if err := w.checkEntries(entries); err != nil {
		return err
	}
	for len(entries) > 0 {
		n, size := 1, groupSlack+entryBytes(&entries[0])
		for n < len(entries) {
			size += entryBytes(&entries[n])
			if int64(size) > w.o.MaxGroupBytes {
				break
			}
			n++
		}
		w.startGroup()
		w.truncateTo(entries[0].Index)
		for i := range entries[:n] {
			w.group.entry(&entries[i])
		}
		if err := w.commit(entries[:n], sync || w.cutting()); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// checkEntries judges entries before anything is written.
func (w *WAL) checkEntries(entries []Entry) error {
	w.mu.Lock()
	last, empty := w.mu.last, w.mu.empty()
	w.mu.Unlock()
	first := entries[0].Index
	if first == 0 || first > maxIndex-uint64(len(entries)) || first > last+1 && !empty {
		return fmt.Errorf("%w: %d after %d", ErrGap, first, last)
	}
	for i := range entries {
		if entries[i].Index != first+uint64(i) {
			return fmt.Errorf("%w: %d at place %d of a group that begins with %d", ErrGap, entries[i].Index, i, first)
		}
		if n := int64(groupSlack + entryBytes(&entries[i])); n > w.o.MaxGroupBytes {
			return fmt.Errorf("%w: entry %d needs a group of %d bytes, at most %d", ErrTooLarge, entries[i].Index, n, w.o.MaxGroupBytes)
		}
	}
	return nil
}

// startGroup begins a group with what every group carries.
func (w *WAL) startGroup() {
	w.group.reset()
	w.mu.Lock()
	front, synced := w.mu.front, w.mu.syncedFront
	w.mu.Unlock()
	w.sentFront = synced
	if front > synced {
		w.group.index(kindFront, front)
		w.sentFront = front
	}
}

// truncateTo adds the record that makes index the next one, if there must be one.
func (w *WAL) truncateTo(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case index == w.mu.last+1:
	case w.mu.empty():
		w.group.index(kindReset, index)
	default:
		w.group.index(kindTruncate, index)
		w.mu.cutting = index
	}
}

// cutting reports whether the group that is built truncates: such a group is always synced, or the entries that it
// drops could be known as synced.
func (w *WAL) cutting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.cutting != 0
}

// TruncateBack drops the entries from index on, synced. It does nothing when there are none.
//
// Errors: as Append.
func (w *WAL) TruncateBack(index uint64) error {
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	w.mu.Lock()
	index = max(index, w.mu.front)
	nothing := index > w.mu.last
	w.mu.Unlock()
	if nothing {
		return nil
	}
	w.startGroup()
	w.truncateTo(index)
	return w.commit(nil, true)
}

// Release writes the record of TruncateFront now, in a group of its own, so that upkeep can take segments back although
// nothing else is written. It does nothing when there is nothing to say.
//
// Errors: as Append.
func (w *WAL) Release() error {
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	w.startGroup()
	if w.group.n == headerSize {
		return nil
	}
	return w.commit(nil, true)
}

// Reset drops all entries and makes index the next one, synced: the log after a snapshot up to index-1.
//
// Errors: as Append.
func (w *WAL) Reset(index uint64) error {
	if index == 0 || index > maxIndex {
		return fmt.Errorf("%w: reset to %d", ErrGap, index)
	}
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	w.startGroup()
	w.group.index(kindReset, index)
	return w.commit(nil, true)
}

// A Stable is a stable value for SetStables. A nil Value removes it.
type Stable struct {
	Key   string
	Value []byte
}

// SetStable sets a stable value, synced. A nil value removes it. Both are copied.
//
// Errors: ErrTooLarge when all stable values together would outgrow their room (64 KiB, less in small segments);
// otherwise as Append.
func (w *WAL) SetStable(key string, value []byte) error {
	return w.SetStables([]Stable{{key, value}})
}

// SetStables sets several stable values at once: after a crash all are there or none.
func (w *WAL) SetStables(values []Stable) error {
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	if err := w.checkStables(values); err != nil {
		return err
	}
	w.startGroup()
	for _, v := range values {
		if v.Value == nil {
			w.group.unsetStable(v.Key)
		} else {
			w.group.stable(v.Key, v.Value)
		}
	}
	return w.commit(nil, true)
}

func (w *WAL) checkStables(values []Stable) error {
	sizes := map[string]int64{}
	w.mu.Lock()
	for k, v := range w.mu.stable {
		sizes[k] = stableBytes(k, v)
	}
	w.mu.Unlock()
	group := int64(groupSlack)
	for _, v := range values {
		if len(v.Key) > 1<<10 {
			return fmt.Errorf("%w: key of %d bytes", ErrTooLarge, len(v.Key))
		}
		group += stableBytes(v.Key, v.Value)
		sizes[v.Key] = stableBytes(v.Key, v.Value)
		if v.Value == nil {
			delete(sizes, v.Key)
		}
	}
	total := int64(0)
	for _, n := range sizes {
		total += n
	}
	if limit := w.o.maxStable(); total > limit || group > w.o.MaxGroupBytes {
		return fmt.Errorf("%w: %d bytes of stable values, at most %d", ErrTooLarge, total, limit)
	}
	return nil
}

// commit writes the group that was built, waits for the disk if it is to be synced, and then makes it visible. entries
// are those in it.
func (w *WAL) commit(entries []Entry, sync bool) error {
	if w.pos+align(int64(w.group.n)) > w.cur.size {
		if err := w.rotate(); err != nil {
			return err
		}
	}
	b, link := w.group.finish(w.header(w.cur, w.pos))
	sync = sync || w.cur.out != w.cur.file
	if err := w.write(w.cur, b, w.pos, sync); err != nil {
		return err
	}
	at := w.pos
	w.number++
	w.chain, w.pos = link, at+int64(len(b))
	return w.publish(at, entries, sync)
}

// header is that of the next group.
func (w *WAL) header(s *segment, pos int64) groupHeader {
	return groupHeader{
		logID: w.logID, segment: s.seq, number: w.number + 1, synced: w.synced.Load(), block: uint32(pos / blockSize), prev: w.chain,
	}
}

// write puts b into the file and, with sync, on the disk. An error poisons the log, and so does whoever gave up on the
// write meanwhile.
func (w *WAL) write(s *segment, b []byte, pos int64, sync bool) error {
	start := w.o.Now()
	w.writeStarted.Store(start + 1)
	_, err := s.out.WriteAt(b, pos)
	if err == nil && sync && s.out == s.file {
		err = w.sync(s)
	}
	w.writeStarted.Store(0)
	if err != nil {
		w.Poison(fmt.Errorf("write %d bytes at %d of segment %d: %w", len(b), pos, s.seq, err))
	}
	if err := w.Poisoned(); err != nil {
		return err
	}
	ns := w.o.Now() - start
	w.c.groups.Add(1)
	w.c.bytes.Add(int64(len(b)))
	w.c.writeNs.Add(ns)
	if ns > w.c.maxWriteNs.Load() {
		w.c.maxWriteNs.Store(ns)
	}
	if !sync {
		w.c.unsynced.Add(1)
	}
	if w.o.Events.Synced != nil {
		w.o.Events.Synced(int64(len(b)), ns)
	}
	return nil
}

// sync syncs a segment, alone: see syncWritten.
func (w *WAL) sync(s *segment) error {
	select {
	case w.syncTurn <- struct{}{}:
	case <-w.poisoned: // the sync in flight failed, or hangs and was given up
		return w.Poisoned()
	}
	defer func() { <-w.syncTurn }()
	err := s.out.SyncData()
	if err != nil {
		w.Poison(fmt.Errorf("sync segment %d: %w", s.seq, err)) // before the turn is given up
	}
	return err
}

// publish applies the records of the written group, in the order in which recovery would: it reads them from the
// group's own bytes, except for entries, which are at hand.
func (w *WAL) publish(at int64, entries []Entry, synced bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	small := w.group.buf[headerSize:w.group.n]
	if len(w.group.locs) > 0 {
		small = w.group.buf[headerSize:w.group.locs[0].pos]
	}
	for len(small) > 0 {
		size := frameLen(small)
		r, err := parseRecord(small[:size:size])
		if err != nil {
			return err // our own bytes: cannot be
		}
		switch r.kind {
		case kindTruncate:
			w.mu.truncateBack(r.index)
			w.mu.ring.truncateBack(r.index)
		case kindReset:
			w.mu.reset(r.index)
			w.mu.ring.clear()
			w.sentFront = r.index
		case kindStable:
			w.mu.setStable(string(r.key), r.stableValue())
		}
		small = small[size:]
	}
	bytes := int64(0)
	for i := range entries {
		e := &entries[i]
		l := w.group.locs[i]
		l.pos += uint32(at)
		if err := w.mu.addEntry(w.cur, e.Index, l); err != nil {
			return err // checked before the write: cannot be
		}
		w.mu.ring.push(e)
		bytes += int64(len(e.Data) + len(e.Extensions))
	}
	w.c.entries.Add(int64(len(entries)))
	w.c.entryBytes.Add(bytes)
	w.mu.cutting, w.mu.pos = 0, w.pos
	w.mu.written = syncPoint{w.number, w.mu.last, w.sentFront}
	if synced {
		w.noteSynced(w.mu.written)
	} else {
		w.pokeSync()
	}
	return nil
}

// rotate begins the next segment with a group that repeats what recovery needs if all older segments are gone.
func (w *WAL) rotate() error {
	s, err := w.takeReady()
	if err != nil {
		return err
	}
	// What is not synced yet lies in the last segment alone: one sync is always enough.
	if err := w.syncWritten(); err != nil {
		return err
	}
	g := &w.opening
	g.reset()
	w.mu.Lock()
	g.open(w.mu.last+1, max(w.mu.syncedFront, 1), s.size)
	for _, k := range w.mu.stableKeys() {
		g.stable(k, w.mu.stable[k])
	}
	w.mu.Unlock()
	b, link := g.finish(w.header(s, 0))
	if err := w.write(s, b, 0, true); err != nil {
		return err
	}
	w.number++
	w.chain, w.pos, w.cur = link, int64(len(b)), s
	s.open = w.number
	w.c.rotations.Add(1)
	w.mu.Lock()
	w.mu.ready = w.mu.ready[1:]
	w.short.Store(w.mu.upkeepErr != nil || len(w.mu.ready) < w.o.ReadySegments)
	w.mu.segments = append(w.mu.segments, s)
	w.mu.settled, w.mu.pos = false, w.pos
	w.mu.written = syncPoint{w.number, w.mu.last, w.mu.syncedFront}
	w.synced.Store(w.number)
	w.syncedIndex.Store(w.mu.last)
	w.mu.Unlock()
	w.pokeUpkeep()
	return nil
}

// takeReady returns the first ready segment, which stays in the list until it is opened. It waits for upkeep when
// there is none.
func (w *WAL) takeReady() (*segment, error) {
	w.mu.Lock()
	seen, waited := w.mu.upkeeps, false
	for {
		if len(w.mu.ready) > 0 {
			s := w.mu.ready[0]
			w.mu.Unlock()
			return s, nil
		}
		err, ended, changed := w.mu.upkeepErr, w.mu.upkeeps != seen, w.mu.changed
		w.mu.Unlock()
		if p := w.Poisoned(); p != nil {
			return nil, p
		}
		if ended && err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoSegment, err)
		}
		if !waited {
			w.c.waits.Add(1)
			waited = true
		}
		if w.o.Inline {
			_ = w.Upkeep() // the error is in upkeepErr
		} else {
			w.pokeUpkeep()
			<-changed
		}
		w.mu.Lock()
	}
}

package state

// Touch marks a live entry as changed, for who has its position and needs no look-up.
func (t *Table) Touch(p Pos) {
	if h := t.arena[p]; h&flagDirty == 0 {
		t.arena[p] = h | flagDirty
		t.dirty = append(t.dirty, p)
	}
}

// Live says whether an entry has not been removed.
func (t *Table) Live(p Pos) bool { return t.arena[p]&flagDead == 0 }

// Used is the number of entries that take room, dead ones included: they give it back when the table is
// cleared.
func (t *Table) Used() int { return t.used }

package state

// Live says whether an entry has not been removed.
func (t *Table) Live(p Pos) bool { return t.arena[p]&flagDead == 0 }

// Used is the number of entries that take room, dead ones included: they give it back when the table is
// cleared.
func (t *Table) Used() int { return t.used }

package plan

// A Lookup finds for each row the row of a table that has its key. Its Stage.Out is the input and a struct
// with the columns of the table.
type Lookup struct {
	Table *Topic
	Key   []*Expr // over the input columns: a value for each column of the table's key, of its type; null matches nothing
	On    *Expr   // over Out: what else must hold of the row that was found; nil: nothing
	Left  bool    // a row without partner stays, with null; else it goes
	Text  string  // of `on`
}

// Tables lists the tables that the stages of a pipeline look rows up in, each once.
func (p *Pipeline) Tables() []*Topic {
	var out []*Topic
	seen := map[string]bool{}
	for i := range p.Stages {
		if l := p.Stages[i].Lookup; l != nil && !seen[l.Table.Name] {
			seen[l.Table.Name] = true
			out = append(out, l.Table)
		}
	}
	return out
}

// Inputs are the names of the topics that a pipeline reads: its source, then its tables.
func (p *Pipeline) Inputs() []string {
	out := []string{p.Source.Name}
	for _, t := range p.Tables() {
		out = append(out, t.Name)
	}
	return out
}

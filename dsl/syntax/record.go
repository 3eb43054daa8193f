package syntax

// A mark says what begins at a token, for the layout of Format.
type mark uint8

const (
	markNone mark = iota
	markStatement
	markStage      // |>
	markClause     // a clause that gets its own line in a broken stage
	markItem       // an element of a comma list
	markWith       // with, after a pipeline: on its own line
	markWithSchema // with, after a schema: there if it fits
	markBrace      // { of a schema or a row
	markField
	markBraceEnd
	markSteps // { of a test
	markStep
	markStepsEnd
)

// A spacing says which spaces a token of an expression has around it.
type spacing uint8

const (
	spaced    spacing = iota // a space before
	glued                    // none before
	open                     // a space before, none after
	gluedOpen                // none before, none after
)

// A printed is a token as Format prints it.
type printed struct {
	token
	mark   mark
	space  spacing
	inExpr bool
	depth  int // brackets open around a token of an expression
}

// A recorder keeps the tokens in the order of the text while the parser reads them.
type recorder struct {
	toks  []printed
	marks map[int]mark
	glue  map[int]bool
}

func newRecorder() *recorder {
	return &recorder{marks: make(map[int]mark), glue: make(map[int]bool)}
}

func (r *recorder) markAt(pos int, m mark) { r.marks[pos] = m }
func (r *recorder) glueAt(pos int)         { r.glue[pos] = true }

// token keeps a token outside expressions with the spaces that all of its kind have.
func (r *recorder) token(t token) {
	p := printed{token: t}
	if t.kind == kindOp {
		switch t.text {
		case ",", ")", "]":
			p.space = glued
		case "(", "[":
			p.space = open
		}
	}
	if r.glue[t.pos] {
		if p.space == open {
			p.space = gluedOpen
		} else {
			p.space = glued
		}
	}
	r.toks = append(r.toks, p)
}

func (r *recorder) exprToken(t token, s spacing, depth int) {
	r.toks = append(r.toks, printed{token: t, space: s, inExpr: true, depth: depth})
}
